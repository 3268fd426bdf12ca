"""THOR's step on tiny networks, as theorems: what moves the weights, and what the factors estimate."""

import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support import reference
from tests.support.networks import Mixed, Mlp, batch, gradients, images, make, matrix, never, squared_error, values
from thor.factors.blocks import even_cut

LR, DAMPING = 0.05, 0.1


def mlp_reference(net, x, y):
    """[(A, G)] of an Mlp by hand."""
    weights, biases = [c.weight.asnumpy() for c in net.layers], [c.bias.asnumpy() for c in net.layers]
    _, inputs, grads = reference.mlp_pass(weights, biases, x.asnumpy(), y.asnumpy())
    return inputs, grads, [reference.dense_factors(a, g, True) for a, g in zip(inputs, grads, strict=True)]


def split_inverse(factor, mean, size, split, damping, bias=False):
    if size >= len(factor) or split == "block":
        return reference.damped_inverse(reference.block_diagonal(factor, even_cut(len(factor), size)[0]), damping)
    construction = reference.with_mean_and_bias if bias else reference.with_mean
    size = even_cut(len(factor) - bias, size)[0]
    return reference.damped_inverse(sum(construction(factor, mean, size)), damping)


@pytest.mark.parametrize(("split", "size"), [("block", 99), ("block", 2), ("block+mean", 2), ("block+mean", 3)])
def test_the_weight_step_is_lr_times_the_explicit_kronecker_direction(split, size):
    net, (x, y) = Mlp(), batch()
    before, grads = values(net), gradients(net, squared_error, x, y)
    inputs, outputs, pairs = mlp_reference(net, x, y)
    _, step = make(net, lr=LR, damping=DAMPING, split=split, block_size=size)
    step(x, y)
    after = values(net)
    for k, (a, g) in enumerate(pairs):
        a_damping, g_damping = reference.pi_damping(a, g, DAMPING)
        a_mean, g_mean = reference.with_ones(inputs[k]).mean(0), outputs[k].sum(0)
        direction = reference.kron_direction(
            matrix(grads, f"layers.{k}"),
            split_inverse(a, a_mean, size, split, a_damping, bias=True),
            split_inverse(g, g_mean, size, split, g_damping),
        )
        moved = (matrix(before, f"layers.{k}") - matrix(after, f"layers.{k}")) / LR
        np.testing.assert_allclose(moved, direction, rtol=2e-3, atol=2e-4)  # weights keep 6e-8 / lr of a difference


@pytest.mark.parametrize("block_size", [128, 4])
def test_the_weight_step_of_convolutions_uses_each_groups_own_inverses(block_size):
    net, (x, y) = Mixed().set_train(), images()
    grads = gradients(net, squared_error, x, y)
    before = values(net)
    optimizer, step = make(net, lr=LR, damping=DAMPING, block_size=block_size)
    step(x, y)
    after = values(net)
    for name, groups in (("conv", 2), ("depthwise", 4), ("dense", 1)):
        a, g = optimizer.inverses(name)
        a, g = (m.reshape(groups, *m.shape[-2:]).astype(np.float64) for m in (a, g))
        gradient = np.split(matrix(grads, name), groups)
        direction = np.concatenate([reference.kron_direction(*parts) for parts in zip(gradient, a, g, strict=True)])
        moved = (matrix(before, name) - matrix(after, name)) / LR
        np.testing.assert_allclose(moved, direction, rtol=2e-3, atol=1e-3 * np.abs(direction).max())


@pytest.mark.parametrize("name", ["conv", "depthwise", "dense"])
def test_inverse_times_damped_factor_is_the_identity(name):
    net, (x, y) = Mixed(), images()
    optimizer, step = make(net, damping=DAMPING)
    step(x, y)
    a, g = (m.reshape(-1, *m.shape[-2:]).astype(np.float64) for m in optimizer.factors(name))
    a_inverse, g_inverse = (m.reshape(-1, *m.shape[-2:]) for m in optimizer.inverses(name))
    for k in range(len(a)):
        dampings = reference.pi_damping(a[k], g[k], DAMPING)
        for factor, inverse, damping in zip((a[k], g[k]), (a_inverse[k], g_inverse[k]), dampings, strict=True):
            identity = np.eye(len(factor))
            np.testing.assert_allclose(inverse @ (factor + damping * identity), identity, atol=1e-3)


def per_example(net, loss_fn, x, y, name):
    """Each example's own gradient of a layer's [W | b], flattened, from MindSpore's autodiff."""
    rows = [matrix(gradients(net, loss_fn, x[i : i + 1], y[i : i + 1]), name) for i in range(len(x))]
    return np.stack(rows).reshape(len(x), -1)


@pytest.mark.parametrize("layer", ["layers.0", "layers.1"])
def test_for_one_example_the_kronecker_product_is_the_exact_empirical_fisher(layer):
    net, (x, y) = Mlp(), batch(count=1)
    fisher = reference.empirical_fisher(per_example(net, squared_error, x, y, layer))
    optimizer, step = make(net, lr=0.0)
    step(x, y)
    a, g = optimizer.factors(layer)
    np.testing.assert_allclose(np.kron(g, a), fisher, rtol=1e-4, atol=1e-5 * np.abs(fisher).max())


@pytest.mark.parametrize("count", [2, 7])
def test_for_output_gradients_that_agree_up_to_sign_it_is_exact_for_any_batch(count):
    """|output - target|, one output: each example's output gradient is +1 or -1."""
    net = Mlp((5, 4, 1))
    x, y = batch(count=count, outputs=1)

    def absolute(output, target):
        return ms.ops.abs(output - target).mean()

    per = per_example(net, absolute, x, y, "layers.1")
    assert len({row[-1] for row in per.tolist()}) == 2  # the bias's gradient: both signs occur
    optimizer, step = make(net, lr=0.0, loss_fn=absolute)
    step(x, y)
    a, g = optimizer.factors("layers.1")
    np.testing.assert_allclose(np.kron(g, a), reference.empirical_fisher(per), rtol=1e-4, atol=1e-6)


def test_large_damping_turns_to_the_gradients_direction():
    """(G + g I)^-1 dW (A + a I)^-1 -> dW / damping, since a g = damping."""
    net, (x, y) = Mlp(), batch()
    before, grads, damping = values(net), gradients(net, squared_error, x, y), 1e8
    _, step = make(net, lr=0.1 * damping, damping=damping, split="block", block_size=2)
    step(x, y)
    for name, gradient in grads.items():
        np.testing.assert_allclose((before[name] - values(net)[name]) / 0.1, gradient, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("split", "options"),
    [
        ("block", {"loss_scale": 128.0}),
        ("block+mean", {"loss_scale": 128.0}),
        ("block+rank", {"loss_scale": 128.0}),
        ("block+mean", {"accumulate": 2}),
        ("block+rank", {"accumulate": 4, "loss_scale": 16.0}),
    ],
)
def test_loss_scale_and_accumulation_leave_factors_and_steps_unchanged(split, options):
    shared = {"split": split, "block_size": 2, "rank": 2}
    x, y = batch(count=8)
    plain_net, net = Mlp(), Mlp()
    plain, plain_step = make(plain_net, **shared)
    plain_loss = plain_step(x, y).asnumpy()
    optimizer, step = make(net, **options, **shared)
    parts = options.get("accumulate", 1)
    for micro in range(parts):
        rows = slice(micro * 8 // parts, (micro + 1) * 8 // parts)
        loss = step(x[rows], y[rows])
    assert optimizer.step == 1
    np.testing.assert_allclose(loss.asnumpy(), plain_loss, rtol=1e-5)
    for name in ("layers.0", "layers.1"):
        for ours, theirs in zip(optimizer.factors(name), plain.factors(name), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for name, value in values(plain_net).items():
        np.testing.assert_allclose(values(net)[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95])
def test_the_running_average_is_corrected_for_its_bias(decay):
    net = Mlp()
    batches = [batch(seed=seed) for seed in range(4)]
    wanted = [mlp_reference(net, x, y)[2] for x, y in batches]
    optimizer, step = make(net, lr=0.0, factor_decay=decay)
    for count, (x, y) in enumerate(batches, 1):
        step(x, y)
        for k in range(2):
            for side in range(2):
                average = reference.running_average([pairs[k][side] for pairs in wanted[:count]], decay)
                np.testing.assert_allclose(optimizer.factors(f"layers.{k}")[side], average, rtol=1e-4, atol=1e-5)


def test_with_identity_caches_plain_steps_equal_momentums(mode):
    (x, y), (ours, theirs) = batch(), (Mlp(), Mlp())
    optimizer, step = make(ours, lr=0.1, momentum=0.9, weight_decay=0.01, jit=True)
    never(optimizer)
    momentum = nn.Momentum(theirs.trainable_params(), 0.1, 0.9, 0.01)
    for _ in range(4):
        step(x, y)
        grads = gradients(theirs, squared_error, x, y)
        momentum(tuple(Tensor(grads[p.name]) for p in theirs.trainable_params()))
    assert optimizer.step == 4 and not optimizer.history
    for name, value in values(theirs).items():
        np.testing.assert_allclose(values(ours)[name], value, rtol=1e-5, atol=1e-6)


def test_momentum_checkpoints_load_into_thors_network_and_back(tmp_path):
    trained, fresh = Mlp(seed=1), Mlp(seed=2)
    nn.Momentum(trained.trainable_params(), 0.1, 0.9)
    make(fresh)
    ms.save_checkpoint(trained, str(tmp_path / "momentum.ckpt"))
    assert ms.load_param_into_net(fresh, ms.load_checkpoint(str(tmp_path / "momentum.ckpt"))) == ([], [])
    assert all((value == values(trained)[name]).all() for name, value in values(fresh).items())
    _, step = make(Mlp(seed=3))
    step(*batch())
    ms.save_checkpoint(fresh, str(tmp_path / "thor.ckpt"))
    assert set(ms.load_checkpoint(str(tmp_path / "thor.ckpt"))) == set(values(trained))


def test_the_refresh_interval_and_the_gathering_between():
    """interval 4, factors every 2 steps: gathered at 0, 2, 4, 6, refreshed at 0, 4."""
    optimizer, step = make(Mlp(), interval=4, factor_interval=2, factor_decay=0.9)
    weights = []
    for _ in range(7):
        step(*batch())
        weights.append(float(optimizer.own_state.average_weight.asnumpy()[0]))
    assert [r.step for r in optimizer.history if r.layer == "layers.0"] == [0, 4]
    np.testing.assert_allclose(weights, [1, 1, 1.9, 1.9, 2.71, 2.71, 3.439], rtol=1e-5)


def test_an_interval_may_be_any_callable_of_the_step():
    asked = []

    def interval(step):
        asked.append(step)
        return 1 if step < 2 else 3

    optimizer, step = make(Mlp(), interval=interval)
    for _ in range(7):
        step(*batch())
    assert [r.step for r in optimizer.history if r.layer == "layers.0"] == [0, 1, 2, 5]
    assert set(asked) >= {0, 1, 2, 5}


@pytest.mark.parametrize("endless", [2**31, sys.maxsize])
def test_an_interval_longer_than_an_int32_is_one_that_does_not_end(endless):
    optimizer, step = make(Mlp(), interval=endless, factor_interval=endless)
    for _ in range(3):
        step(*batch())
    assert [r.step for r in optimizer.history if r.layer == "layers.0"] == [0]
    assert optimizer.own_state.average_weight.asnumpy()[0] == 1


def test_learning_rate_and_damping_may_be_callables_of_the_step():
    rates, net = [0.1, 0.0, 0.2], Mlp()
    optimizer, step = make(net, lr=lambda k: rates[k], damping=lambda k: [1.0, 2.0, 4.0][k])
    moved = []
    for _ in range(3):
        before = values(net)
        step(*batch())
        moved.append(any((values(net)[name] != value).any() for name, value in before.items()))
        assert optimizer.inner.learning_rate.asnumpy() == np.float32(rates[len(moved) - 1])
    assert moved == [True, False, True]
    a, g = optimizer.factors("layers.1")
    damping = reference.pi_damping(a, g, 4.0)[0]
    np.testing.assert_allclose(optimizer.inverses("layers.1")[0], reference.damped_inverse(a, damping), rtol=1e-3)


def test_records_memory_and_repr_say_what_is_there():
    optimizer, step = make(Mixed(), block_size=8)
    step(*images())
    dense = optimizer.layers[-1]
    assert (dense.name, dense.kind, dense.a_dim, dense.g_dim, dense.blocks) == (
        "dense",
        "dense",
        33,
        3,
        ((4, 8), (1, 3)),
    )
    assert (dense.status, dense.refreshes, dense.kept) == ("active", 1, 0)
    memory = optimizer.memory()
    # A: estimate 4 x 8 x 8; mean and probe 33 each, the bias apart; inverse whole, 33 x 33; two slots and uses of 1;
    # G: two 3 x 3, four slots of 1, uses 1
    assert memory["dense"] == dense.bytes == 4 * (256 + 2 * 33 + 33 * 33 + 2 + 1 + 2 * 9 + 4 + 1)
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    text = repr(optimizer)
    assert "step=1" in text and "dense: dense, A 33 (4x8), G 3 (1x3), active, 1 refreshes" in text
    with pytest.raises(KeyError, match="no captured layer 'nothing'; there are conv, depthwise, dense"):
        optimizer.factors("nothing")


def test_one_log_line_per_captured_layer_and_one_for_what_was_not(caplog):
    with caplog.at_level("INFO", logger="thor"):
        make(Mixed())
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines if line.startswith("captured")] == ["conv", "depthwise", "dense"]
    assert [line for line in lines if line.startswith("not captured")] == [
        "not captured: norm: normalisation is not captured (norms=False)"
    ]


def test_two_networks_may_have_optimizers_side_by_side():
    first, second = make(Mlp())[1], make(Mlp())[1]
    assert first(*batch()).asnumpy() == second(*batch()).asnumpy()
    assert isinstance(first.optimizer, thor.THOR)
