"""The update of the running averages: F <- F + gain (fresh - F), with every device's choice of operators."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from first_order.compiled import CompiledFunction
from tests.support.networks import Mixed, Mlp, make
from tests.thor.capture.test_pair_capture import Tied
from thor.runtime import device
from thor.step.estimate import Estimate, moved_by_descent, moved_by_sum

SCALE = 0.25  # what fresh statistics are scaled down by, for each power of the loss scale


def powers(layer):
    """The powers of the loss scale in a layer's statistics."""
    of_a, *of_g = layer.powers
    return (of_a, 0, 0, *of_g)


@pytest.mark.parametrize("target", ["CPU", "GPU"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("network", [Mlp, Mixed, Tied])
def test_averages_move_by_the_gain_of_their_layer(network, scaled, target):
    optimizer, _ = make(network(), block_size=2, norms=True)
    layers = optimizer.captured
    rng = np.random.default_rng(0)
    estimates = [each for layer in layers for factor in (layer.a, layer.g) for each in factor.estimates]
    for each in estimates:
        each.set_data(Tensor(rng.standard_normal(each.shape).astype(np.float32)))
    before = [each.asnumpy().copy() for each in estimates]
    fresh = [rng.standard_normal(each.shape).astype(np.float32) for each in estimates]
    gain = np.linspace(0.0, 0.5, len(layers) + 1, dtype=np.float32)[: len(layers)]  # the first has stopped
    with device.choosing_for(target):
        update = CompiledFunction(Estimate(layers, scaled), estimates)
        update(Tensor(gain), Tensor(np.float32(SCALE)), tuple(map(Tensor, fresh)))
    unused = {id(factor.beside) for layer in layers for factor in (layer.a, layer.g) if not factor.cut.rank}
    gains = np.repeat(gain, 6)
    for each, old, new, rate, power in zip(
        estimates, before, fresh, gains, [p for layer in layers for p in powers(layer)], strict=True
    ):
        wanted = old if id(each) in unused else old + rate * (new * SCALE ** (power * scaled) - old)
        np.testing.assert_allclose(each.asnumpy(), wanted, rtol=1e-6, atol=1e-6, err_msg=each.name)


class Moved(nn.Cell):
    """One average, moved by one of the ways."""

    def __init__(self, move, start):
        super().__init__()
        self.move, self.average = move, ms.Parameter(Tensor(start), name="average")

    def construct(self, gain, fresh):
        return self.move(self.average, gain, fresh)


def test_both_ways_to_move_an_average_are_the_same_to_the_bit():
    """Compiled and operator by operator."""
    rng = np.random.default_rng(1)
    start, fresh = (rng.standard_normal((2, 5, 7)).astype(np.float32) for _ in range(2))
    found = set()
    for move in (moved_by_sum, moved_by_descent):
        for compiled in (False, True):
            moved = Moved(move, start)
            step = CompiledFunction(moved, [moved.average]) if compiled else moved
            step(Tensor(np.float32(0.3)), Tensor(fresh))
            found.add(moved.average.asnumpy().tobytes())
    assert len(found) == 1
