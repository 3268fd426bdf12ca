"""order="position": the same mathematics on permuted coordinates of a convolution's input, cut there."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.support import reference
from tests.support.networks import Mixed, fill, gradients, images, make, matrix, squared_error, values
from thor import BlockPlan
from thor.factors.blocks import even_cut
from thor.profile.spectral import position_major

LR, DAMPING = 0.05, 0.1
CHANNELS, KERNEL, POSITIONS = 3, (2, 3), 6


class Convolution(nn.Cell):
    """One convolution whose outputs are summed over the image."""

    def __init__(self, group=1, has_bias=True):
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS * group, 2 * group, KERNEL, pad_mode="valid", group=group, has_bias=has_bias)
        fill(self, 0)

    def construct(self, x):
        return self.conv(x).sum((2, 3))


def data(group, count=5):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((count, CHANNELS * group, 3, 4)) * rng.uniform(0.3, 2, (1, CHANNELS * group, 1, 1)) + 0.5
    return Tensor(x.astype(np.float32)), Tensor(rng.standard_normal((count, 2 * group)).astype(np.float32))


def plan(order, split="block", size=4):
    """Only A is cut, so that G needs no second reference."""
    return BlockPlan(block_size=99, layers={"conv": (size, 99)}, split=split, order=order, rank=2)


def factor_pairs(net, x, y, group, has_bias):
    """Dense (A, mean, G) a group, in channel-major order."""
    seen = reference.patches(x.asnumpy(), KERNEL, (1, 1), (1, 1), (0, 0, 0, 0))
    rows = seen.shape[1] * seen.shape[2]
    output = net(x).asnumpy()
    g = np.broadcast_to((2 * (output - y.asnumpy()) / len(output))[:, :, None, None], output.shape + seen.shape[1:3])
    found = []
    for k, (a, gg) in enumerate(reference.conv_factors(seen, g, group, has_bias)):
        flat = seen[:, :, :, k * CHANNELS : (k + 1) * CHANNELS].reshape(len(output) * rows, -1)
        flat = reference.with_ones(flat) if has_bias else flat
        found.append((a, np.sqrt(rows) * flat.mean(0), gg))
    return found


@pytest.mark.parametrize(
    ("split", "group", "has_bias", "mode"),
    [
        ("block", 1, True, ms.GRAPH_MODE),
        ("block", 2, False, ms.PYNATIVE_MODE),
        ("block+mean", 2, True, ms.PYNATIVE_MODE),
    ],
)
def test_factors_inverses_and_the_step_are_those_of_permuted_coordinates(split, group, has_bias, mode):
    ms.set_context(mode=mode)
    net, (x, y) = Convolution(group, has_bias), data(group)
    dim = CHANNELS * POSITIONS + has_bias
    order = position_major(dim, POSITIONS)
    back = np.argsort(order)
    size = even_cut(dim, 4)[0]
    pairs, before = factor_pairs(net, x, y, group, has_bias), values(net)
    grads = np.split(matrix(gradients(net, squared_error, x, y), "conv"), group)
    optimizer, step = make(net, lr=LR, damping=DAMPING, block_size=plan("position", split), jit=mode == ms.GRAPH_MODE)
    step(x, y)
    factors, inverses = (
        m.reshape(group, dim, dim) for m in (optimizer.factors("conv")[0], optimizer.inverses("conv")[0])
    )
    directions = []
    for k, (a, mean, g) in enumerate(pairs):
        damping_a, damping_g = reference.pi_damping(a, g, DAMPING)
        moved, shared = a[np.ix_(order, order)], np.zeros((dim, dim))
        if split == "block+mean":
            blocks, shared = reference.with_mean(moved, mean[order], size)
        else:
            blocks = reference.block_diagonal(moved, size)
        np.testing.assert_allclose(factors[k], blocks + shared, rtol=1e-4, atol=1e-5 * np.abs(a).max())
        inverse = reference.damped_inverse(blocks + shared, damping_a)
        np.testing.assert_allclose(inverses[k], inverse, rtol=1e-3, atol=1e-4 * np.abs(inverse).max())
        channel_major = inverse[np.ix_(back, back)]
        directions.append(reference.kron_direction(grads[k], channel_major, reference.damped_inverse(g, damping_g)))
    found = (matrix(before, "conv") - matrix(values(net), "conv")) / LR
    expected = np.concatenate(directions)
    # weights keep 6e-8 / lr of a difference
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())


def test_the_low_rank_follows_the_order_too():
    """Blocks stand on the diagonal whatever is kept beside them, so the factor's own blocks are the permuted ones."""
    net, (x, y) = Convolution(), data(1)
    ((a, _, _),) = factor_pairs(net, x, y, 1, True)
    order = position_major(len(a), POSITIONS)
    moved, size = a[np.ix_(order, order)], even_cut(len(a), 4)[0]
    optimizer, step = make(net, block_size=plan("position", "block+rank"))
    step(x, y)
    found = reference.block_diagonal(optimizer.factors("conv")[0], size)
    np.testing.assert_allclose(found, reference.block_diagonal(moved, size), rtol=1e-4, atol=1e-5 * np.abs(a).max())


def test_where_one_block_covers_a_factor_the_order_changes_nothing():
    """Bit for bit: kernels of one position, dense layers and whole factors have one order only."""
    runs = []
    for order in ("channel", "position"):
        net = Mixed()
        optimizer, step = make(net, block_size=BlockPlan(block_size=99, layers={"dense": 4}, order=order))
        for seed in range(2):
            step(*images(seed=seed))
        runs.append((values(net), values(optimizer)))
    (nets, optimizers), (other_nets, other_optimizers) = runs
    assert all(np.array_equal(value, other_nets[name]) for name, value in nets.items())
    names = set(optimizers) - {"thor.plan"}
    assert all(np.array_equal(optimizers[name], other_optimizers[name]) for name in names)


def test_where_blocks_cut_a_factor_the_order_matters():
    moved = []
    for order in ("channel", "position"):
        net = Convolution()
        _, step = make(net, block_size=plan(order))
        step(*data(1))
        moved.append(net.conv.weight.asnumpy())
    assert np.abs(moved[0] - moved[1]).max() > 1e-3


@pytest.mark.parametrize(("there", "here"), [("channel", "position"), ("position", "channel")])
def test_a_checkpoint_of_another_order_is_refused(there, here, tmp_path):
    path = str(tmp_path / "optimizer.ckpt")
    ms.save_checkpoint(make(Convolution(), block_size=plan(there))[0], path)
    optimizer, _ = make(Convolution(), block_size=plan(here))
    with pytest.raises(ValueError, match=f"another optimizer: order '{there}' there, '{here}' here"):
        ms.load_param_into_net(optimizer, ms.load_checkpoint(path))
    same, _ = make(Convolution(), block_size=plan(there))
    ms.load_param_into_net(same, ms.load_checkpoint(path))
