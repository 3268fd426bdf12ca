"""Published settings are those of the published run."""

import pytest

import thor
from scripts.settings.yaml_config import load_config
from tests.support.networks import Mlp
from tests.support.paths import ROOT


def test_the_papers_settings_are_those_of_the_published_configuration():
    """Its rates and dampings at epochs 1, 10 and 40, by the released formulas."""
    found = thor.presets.paper(5004)
    recipe = load_config(ROOT / "scripts/config/base/resnet50_imagenet_thor_ascend_recipe.yaml").thor
    for name in ("momentum", "weight_decay", "factor_interval", "factor_decay", "split", "block_size"):
        assert found[name] == getattr(recipe, name), name
    assert found["interval"] == recipe.interval.start == recipe.interval.end
    assert found["refresh"] == thor.TraceRule.thor()
    at = {1: (0.0536869, 0.027993), 10: (0.0247061, 0.0150108), 40: (4.66719e-05, 0.00188041)}
    for epoch, (rate, damping) in at.items():
        step = 5004 * epoch - 1
        assert found["learning_rate"](step) == pytest.approx(rate, rel=1e-5)
        assert found["damping"](step) == pytest.approx(damping, rel=1e-5)


@pytest.mark.parametrize(("steps", "interval"), [(5004, 834), (60, 10), (4, 1)])
def test_they_make_an_optimizer_for_an_epoch_of_any_length(steps, interval):
    optimizer = thor.THOR(Mlp(), **thor.presets.paper(steps))
    assert optimizer.options.interval(0) == interval
    assert optimizer.options.plan == thor.BlockPlan(block_size=128, split="block")


@pytest.mark.parametrize(("steps", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), ("6", TypeError)])
def test_a_length_that_is_none_is_refused_by_name(steps, error):
    with pytest.raises(error, match="steps_per_epoch"):
        thor.presets.paper(steps)
