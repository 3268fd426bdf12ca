"""Sums over micro-batches belong to one step: none of an interrupted one, or of one in other parts, is used."""

import mindspore as ms
import numpy as np
import pytest

from tests.support.networks import Mlp, batch, make, values
from thor.optimizer_state import OptimizerState
from thor.refreshing import Refreshing


def losses(step, count):
    return [float(step(*batch(seed=seed)).asnumpy()) for seed in range(count)]


@pytest.mark.parametrize(("owner", "method"), [(OptimizerState, "gain"), (Refreshing, "refresh_if_due")])
def test_an_interrupted_step_leaves_no_sums_to_the_next(monkeypatch, owner, method):
    """Ctrl-C, or an error of a schedule, behind the last micro-batch and before the weights move."""
    net, other = Mlp(), Mlp()
    _, step = make(net, accumulate=2)
    _, alone = make(other, accumulate=2)
    assert losses(step, 2) == losses(alone, 2)
    before = values(net)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, _press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            losses(step, 2)
    assert all(np.array_equal(before[name], value) for name, value in values(net).items())
    assert losses(step, 4) == losses(alone, 4)


def _press_ctrl_c(*_):
    raise KeyboardInterrupt


def test_sums_of_a_step_in_other_parts_are_dropped(tmp_path):
    """Three of four micro-batches were added up; the step that goes on has two."""
    _, step = make(Mlp(), accumulate=4)
    losses(step, 3)
    ms.save_checkpoint(step, str(tmp_path / "step.ckpt"))
    (_, loaded), (_, other) = make(Mlp(), accumulate=2), make(Mlp(), accumulate=2)
    ms.load_param_into_net(loaded, ms.load_checkpoint(str(tmp_path / "step.ckpt")))
    assert losses(loaded, 4) == losses(other, 4)
    assert int(loaded.micro_batches.micro_steps.asnumpy()[0]) == 2


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("sizes", [(2, 10), (4, 1, 7), (6, 6)])
def test_every_example_counts_alike_in_micro_batches_of_any_sizes(jit, sizes):
    """Weights, loss and factors are those of one batch of all examples."""
    whole, parts = Mlp(), Mlp()
    optimizer, step = make(whole, jit=jit)
    accumulating, micro_step = make(parts, jit=jit, accumulate=len(sizes))
    for seed in range(3):
        x, y = batch(sum(sizes), seed=seed)
        loss = float(step(x, y).asnumpy())
        edges = np.cumsum((0, *sizes))
        for first, last in zip(edges, edges[1:], strict=False):
            last_loss = float(micro_step(x[int(first) : int(last)], y[int(first) : int(last)]).asnumpy())
        assert last_loss == pytest.approx(loss, rel=1e-5)
    for name, value in values(whole).items():
        np.testing.assert_allclose(values(parts)[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for name in ("layers.0", "layers.1"):
        for one, other in zip(optimizer.factors(name), accumulating.factors(name), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5, err_msg=name)
