"""The rules file: read strictly, complete, and told in words by a page that is made from it."""

import copy

import pytest
import yaml

from scripts.convergence import plan, rules, rules_page, search
from scripts.convergence.rules import Range
from scripts.data.factory import open_feeds
from scripts.settings.yaml_config import read_yaml
from thor.runtime.errors import UserError

FULL, SMALL = rules.load(rules.DEFAULT), rules.load(rules_page.SMALL)


def test_what_the_rules_ask_for():
    assert list(FULL.tasks) == ["autoencoder", "resnet8-128", "resnet8-1024", "language", "vit", "bible"]
    titles = [each.title for each in FULL.contenders.values()]
    assert titles == [
        "Momentum", "Adam", "Adafactor", "Muon", "SOAP", "THOR", "THOR_stop", "THOR, inverses", "THOR, paper", "K-FAC",
    ]  # fmt: skip
    assert (FULL.trials, FULL.tuning_seed, FULL.test_seeds) == (5, 0, [1, 2, 3, 4, 5])
    assert (SMALL.trials, SMALL.tuning_seed, SMALL.test_seeds) == (5, 0, [1, 2, 3])
    assert SMALL.contenders == FULL.contenders, "only its size differs"
    search.check(FULL)
    search.check(SMALL)
    search.check(FULL.made_quick())


def test_everybody_searches_rate_and_length_over_equally_many_trials():
    for task in FULL.tasks:
        for name in FULL.contenders:
            space = FULL.space(task, name)
            assert "length" in space and any(path.endswith("learning_rate") for path in space)
            assert len(search.trials(FULL, task, name)) == 5


@pytest.fixture(scope="module")
def steps_of():
    """A function that counts the steps of an epoch, and opens equal data once."""
    counted = {}

    def count(settings):
        key = settings.model_dump_json(include={"data", "batch_size"})
        if key not in counted:
            counted[key] = len(open_feeds(settings).train)
        return counted[key]

    return count


@pytest.mark.parametrize("fixed", [FULL, SMALL, FULL.made_quick()], ids=["full", "small", "quick"])
def test_examples_are_those_of_the_data(fixed, steps_of):
    """Steps of an epoch follow from them, and so do the schedules of the paper's THOR and the estimate."""
    for name in fixed.tasks:
        settings = search.settings(fixed, name, "adam", search.trials(fixed, name, "adam")[0], 0)
        assert steps_of(settings) == fixed.tasks[name].steps_per_epoch, name


def test_the_page_is_up_to_date(monkeypatch, tmp_path):
    assert rules_page.main(["--check"]) == 0, "run scripts/convergence/rules_page.py"
    monkeypatch.setattr(rules_page, "PAGE", tmp_path / "rules.md")
    assert rules_page.main(["--check"]) == 1
    assert rules_page.main([]) == 0 and rules_page.main(["--check"]) == 0
    more = FULL.model_copy(update={"trials": 7, "test_seeds": [8, 9]})
    text = rules_page.page(more, SMALL)
    assert "by **7 runs** with seed 0" in text and "have the seeds 8 and 9." in text


def changed(path, value):
    """A copy of the rules file with one entry set, or removed if the value is ...."""
    values = copy.deepcopy(read_yaml(rules.DEFAULT))
    *parents, last = path.split("/")
    place = values
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("trials", 0, "trials = 0: must be greater than or equal to 1"),
        ("trials", "5", "trials = '5': must be a valid integer"),
        ("trails", 5, "trails: no such key"),
        ("tuning_seed", ..., "tuning_seed: is needed"),
        ("test_seeds", [], "test_seeds = []: must be"),
        ("test_seeds", [1, 2, 1], "test_seeds must differ, and are [1, 2, 1]"),
        ("test_seeds", [0, 1], "test_seeds must not have 0, with which everything is tuned"),
        ("target/set_by", ["adamw"], "target.set_by: 'adamw' must be one of momentum, adam"),
        ("target/slack", 1.5, "target.slack = 1.5: must be less than 1"),
        ("contenders/adam/optimizer", "adamw", "contenders.adam.optimizer = 'adamw': must be 'thor', 'momentum'"),
        ("contenders/adam/space/adam.beta1", [], "space.adam.beta1: must be a list of different values, or a range"),
        ("contenders/adam/space/adam.beta1", [0.9, 0.9], "must be a list of different values, or a range"),
        ("contenders/adam/space/adam.beta1", "betas", "adam.beta1 = 'betas': task autoencoder has no such space, only"),
        ("contenders/adam/space", {}, "contenders.adam: needs either a space to search, or tuned_as"),
        ("contenders/adam/tuned_as", "thor", "contenders.adam: needs either a space to search, or tuned_as"),
        ("contenders/thor_stop/tuned_as", "thor_stop", "contenders.thor_stop.tuned_as: 'thor_stop' must be one of"),
        ("tasks/vit/spaces/adam_rate", {"low": 1.0, "high": 2.0}, "tasks.vit.spaces.adam_rate"),
        ("tasks/vit/spaces/adam_rate", {"low": 1, "first": 3, "high": 2}, "low <= first <= high and low < high are"),
        ("tasks/vit/spaces/adam_rate", ..., "adam_rate': task vit has no such space, only momentum_rate"),
        ("tasks/vit/metric", "accuracy", "tasks.vit.metric = 'accuracy': must be 'test_error', 'test_accuracy'"),
        ("tasks/vit/settings/batch_size", ..., "settings.batch_size must be 1 to 10000 (examples), and is None"),
        ("quick/tasks", ["vit", "vit"], "quick.tasks: 'vit' is given twice"),
    ],
)
def test_what_is_refused(path, value, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(changed(path, value), sort_keys=False))
    with pytest.raises(UserError) as caught:
        rules.load(file)
    assert message in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tasks/vit/settings/eval_evry", 3, "task vit, contender momentum: unknown key eval_evry: did you mean"),
        ("contenders/adam/fixed", {"adam.beta2": 2.0}, "task autoencoder, contender adam: adam.beta2 = 2.0: must be"),
        ("tasks/vit/settings/network.width", 3, "contender momentum: network.width is set, and network is 'vit'"),
    ],
)
def test_a_setting_that_no_run_has_is_found_before_the_first_run(path, value, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(changed(path, value), sort_keys=False))
    with pytest.raises(UserError) as caught:
        search.check(rules.load(file))
    assert message in str(caught.value)


def test_a_smaller_file_takes_over_what_it_does_not_set(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"base: {rules.DEFAULT}\ntrials: 3\ntasks: {{vit: {{epochs: 2}}}}\n")
    mine = rules.load(tmp_path / "mine.yaml")
    assert (mine.trials, mine.tasks["vit"].epochs, mine.tasks["bible"]) == (3, 2, FULL.tasks["bible"])


def test_the_plan_by_hand():
    """Two contenders, of which one takes over the other's values; momentum and adafactor set the target too."""
    task = FULL.tasks["vit"].model_copy(update={"epochs": 10, "seconds_per_epoch": 36.0})
    contenders = {
        name: each.model_copy(update={"cost": 1.0, "start_seconds": 3.6}) for name, each in FULL.contenders.items()
    }
    kept = {"tasks": {"vit": task}, "contenders": contenders, "trials": 1}
    fixed = FULL.model_copy(update={**kept, "test_seeds": [1, 2]})
    (part,) = plan.plan(fixed, ["vit"], ["thor", "thor_stop"]).values()
    assert (part.trials, part.tests) == (4, 2 * 2 * 2)
    epochs = 4 * 10 + 2 * 2 * (10 + 6)  # the lengths 1.0, 0.5 and 0.3 have a mean of 0.6
    assert part.core_hours == pytest.approx((epochs * 36 + (4 + 8) * 3.6) / 3600)
    with_target = fixed.model_copy(update={"tasks": {"vit": task.model_copy(update={"target": 0.8})}})
    assert plan.plan(with_target, ["vit"], ["thor", "thor_stop"])["vit"].trials == 1
    text = plan.shown({"vit": part}, 2)
    assert "| vit | 4 | 8 | 1.1 |" in text and text.endswith("about 0.5 hours.")


def test_ranges_are_of_sensible_width():
    """A search of five trials on a logarithmic scale sees little of a range over more than two decades."""
    for task in FULL.tasks.values():
        for space in task.spaces.values():
            assert not isinstance(space, Range) or space.high / space.low <= 101
