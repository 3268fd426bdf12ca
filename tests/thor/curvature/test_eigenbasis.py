"""Adam in the eigenbases of the factors, against the same method in NumPy's float64, and its invariances."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from scipy.linalg import block_diag

import first_order
import thor
from tests.support import reference
from tests.support.networks import Mixed, Mlp, batch, fill, images, never, squared_error, values
from thor.curvature.eigenbasis import bases_of, eigenvectors, turned_columns, turned_rows
from thor.refreshing import Refreshing
from thor.step.adam_moments import largest_step

LR, BETAS, EPSILON = 0.02, (0.9, 0.95), 1e-8
#: Of a step in one basis: the root of sum a_k^2 / b_k, a_k = (1 - beta1) beta1^k and b_k = (1 - beta2) beta2^k.
AGES = np.arange(1000)
LIMIT = np.sqrt(np.sum((0.1 * 0.9**AGES) ** 2 / (0.05 * 0.95**AGES)))


def make(net, lr=LR, *, jit=False, accumulate=1, loss_fn=squared_error, **options):
    """(optimizer, step) with new factors and bases at every step and Adam's own rate, unless asked otherwise."""
    settings = {"interval": 1, "factor_decay": 0.9, "block_size": 64, "rate_factor": 1.0} | options
    optimizer = thor.THOR(net, lr, precondition="eigenbasis", **settings)
    return optimizer, thor.TrainStep(net, loss_fn, optimizer, accumulate=accumulate, jit=jit)


class Adam:
    """Adam in eigenbases for layers of matrices [O, I + 1], the first moment kept in the weights' own coordinates."""

    def __init__(self, matrices, block, interval=1, decay=0.9):
        self.w, self.block, self.interval, self.decay = [m.astype(np.float64) for m in matrices], block, interval, decay
        self.first, self.second = ([np.zeros_like(m) for m in self.w] for _ in range(2))
        self.factors, self.bases, self.steps = [], [], 0

    def step(self, x, y):
        loss, inputs, outputs = reference.mlp_pass([m[:, :-1] for m in self.w], [m[:, -1] for m in self.w], x, y)
        rows = [np.concatenate([a, np.ones((len(a), 1))], 1) for a in inputs]
        fresh = [(a.T @ a / len(a), g.T @ g * len(g)) for a, g in zip(rows, outputs, strict=True)]
        self.factors.append(fresh)
        if self.steps % self.interval == 0:
            self.bases = [tuple(self.basis(i, side) for side in (0, 1)) for i in range(len(self.w))]
        self.steps += 1
        correction = np.sqrt(1 - BETAS[1] ** self.steps) / (1 - BETAS[0] ** self.steps)
        for i, (a, g) in enumerate(zip(rows, outputs, strict=True)):
            gradient, (of_a, of_g) = g.T @ a, self.bases[i]
            self.first[i] = BETAS[0] * self.first[i] + (1 - BETAS[0]) * gradient
            self.second[i] = BETAS[1] * self.second[i] + (1 - BETAS[1]) * (of_g.T @ gradient @ of_a) ** 2
            step = correction * (of_g.T @ self.first[i] @ of_a) / (np.sqrt(self.second[i]) + EPSILON)
            self.w[i] -= LR * of_g @ np.clip(step, -LIMIT, LIMIT) @ of_a.T
        return loss

    def basis(self, layer, side):
        factor = reference.running_average([each[layer][side] for each in self.factors], self.decay)
        full = np.zeros_like(factor)
        size, count = self.cut(len(factor))
        for k in range(count):
            part = slice(k * size, min((k + 1) * size, len(factor)))
            full[part, part] = np.linalg.eigh(factor[part, part])[1]
        return full

    def cut(self, dim):
        count = -(-dim // self.block)
        return -(-dim // count), count


def matrices(net):
    return [np.concatenate([y.weight.asnumpy(), y.bias.asnumpy()[:, None]], 1) for y in net.layers]


@pytest.mark.parametrize(("block", "interval", "jit"), [(64, 1, False), (64, 3, True), (3, 2, False), (3, 1, True)])
def test_a_run_is_that_of_the_formulas(block, interval, jit):
    net = Mlp()
    mine = Adam(matrices(net), block, interval)
    optimizer, step = make(net, jit=jit, block_size=block, interval=interval, factor_interval=1)
    for seed in range(8):
        x, y = batch(count=24, seed=seed)
        np.testing.assert_allclose(float(step(x, y).asnumpy()), mine.step(x.asnumpy(), y.asnumpy()), rtol=1e-4)
    for found, expected in zip(matrices(net), mine.w, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)  # 8 steps of 0.02 each
    assert all(record.refreshes == -(-8 // interval) for record in optimizer.layers)


@pytest.mark.parametrize("jit", [False, True])
def test_without_a_basis_it_is_adam(jit):
    nets = [Mlp(), Mlp()]
    optimizer, step = make(nets[0], jit=jit)
    never(optimizer)
    adam = first_order.Adam(nets[1].trainable_params(), LR, *BETAS, EPSILON)
    other = thor.TrainStep(nets[1], squared_error, adam, jit=jit)
    for seed in range(10):
        step(*batch(seed=seed))
        other(*batch(seed=seed))
    for mine, theirs in zip(values(nets[0]).values(), values(nets[1]).values(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_the_rate_factor_is_on_the_rate_of_layers_in_a_basis_alone(jit):
    """A normalisation has no basis, nor has a weight outside captured layers."""
    ends = []
    for lr, factor in ((LR, 3.0), (3 * LR, 1.0), (LR, 1.0)):
        net = Mixed()
        _, step = make(net, lr=lr, jit=jit, rate_factor=factor, norms=True)
        step(*images())
        ends.append(values(net))
    threefold, fast, slow = ends
    for name, value in threefold.items():
        expected = slow if name.startswith("norm.") else fast
        np.testing.assert_allclose(value, expected[name], atol=1e-6, err_msg=name)
        assert name.endswith(("moving_mean", "moving_variance")) or not np.allclose(fast[name], slow[name])


def test_left_out_the_rate_factor_makes_adams_own_rate_fit():
    assert thor.THOR(Mlp(), 0.1).options.adam.rate_factor == 4.0


def rotation(size, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def test_turned_inputs_leave_the_run_unchanged_and_plain_adam_does_not():
    """x R with weights W R is the same function of the same data, written in other coordinates."""
    turn = rotation(5, 3)

    def losses(turned, in_basis):
        net = Mlp()
        if turned:
            weight = net.layers[0].weight
            weight.set_data(Tensor((weight.asnumpy() @ turn).astype(np.float32)))
        if in_basis:
            _, step = make(net)
        else:
            adam = first_order.Adam(net.trainable_params(), LR, *BETAS, EPSILON)
            step = thor.TrainStep(net, squared_error, adam, jit=False)
        found = []
        for seed in range(8):
            x, y = batch(count=24, seed=seed)
            found.append(float(step(Tensor((x.asnumpy() @ turn).astype(np.float32)) if turned else x, y).asnumpy()))
        return np.array(found)

    np.testing.assert_allclose(losses(True, True), losses(False, True), rtol=2e-4)
    assert np.abs(losses(True, False) - losses(False, False)).max() > 1e-2


def test_a_renewal_turns_the_first_moment_and_loses_nothing_of_it():
    net = Mlp()
    optimizer, step = make(net, interval=4, factor_interval=1)

    def moments():
        found = []
        for layer in optimizer.captured:
            of_a, of_g = layer.a.dense_basis()[0], layer.g.dense_basis()[0]
            found.append(of_g @ layer.first.asnumpy()[0] @ of_a.T)
        return found

    for seed in range(4):
        step(*batch(count=24, seed=seed))
    before = moments()
    Refreshing(optimizer, step.update).refresh_if_due()
    for mine, theirs in zip(moments(), before, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


def test_a_moment_in_other_bases_is_the_same_moment():
    """Two copies of a factor of three blocks, against dense matrices."""
    old, new = (np.array([[rotation(4, seed + 3 * c + n) for n in range(3)] for c in range(2)]) for seed in (0, 9))
    moment = np.random.default_rng(1).standard_normal((2, 5, 12))
    both = zip(turned_columns(moment, old, new), turned_rows(moment.swapaxes(1, 2), old, new), strict=True)
    for c, (of_columns, of_rows) in enumerate(both):
        before, after = block_diag(*old[c]), block_diag(*new[c])
        np.testing.assert_allclose([of_columns @ after.T, (after @ of_rows).T], [moment[c] @ before.T] * 2, atol=1e-12)


def test_a_direction_without_curvature_takes_no_step():
    """The first input is always zero, and so is its weights' gradient, whatever rounding makes of it."""
    net = Mlp()
    before = net.layers[0].weight.asnumpy().copy()
    optimizer, step = make(net, block_size=64)
    for seed in range(6):
        x, y = batch(count=24, seed=seed)
        x = x.asnumpy().copy()
        x[:, 0] = 0.0
        step(Tensor(x), y)
    after = net.layers[0].weight.asnumpy()
    np.testing.assert_array_equal(after[:, 0], before[:, 0])
    assert np.abs(after[:, 1:] - before[:, 1:]).min() > 1e-3


def test_a_layer_behind_weights_of_zero_begins_when_a_gradient_reaches_it():
    """At the first step its G is zero, and so is its trace, which the second candidate must not divide by."""
    net = Mlp()
    ops.assign(net.layers[1].weight, ops.zeros_like(net.layers[1].weight))
    before = values(net)
    _, step = make(net)
    step(*batch())
    np.testing.assert_array_equal(values(net)["layers.0.weight"], before["layers.0.weight"])
    losses = [float(step(*batch())) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert not np.array_equal(values(net)["layers.0.weight"], before["layers.0.weight"])


def test_bases_are_orthonormal_and_padding_has_none():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 9, 5)).astype(np.float32)
    blocks = np.einsum("mri,mrj->mij", rows, rows)
    counts = np.array([5, 5, 5, 3])
    bases = bases_of(blocks, counts)
    for block, basis, count in zip(blocks, bases, counts, strict=True):
        found = basis[:count, :count].astype(np.float64)
        np.testing.assert_allclose(found.T @ found, np.eye(count), atol=1e-5)
        inside = found.T @ block[:count, :count] @ found
        np.testing.assert_allclose(inside, np.diag(np.diag(inside)), atol=1e-5 * np.abs(block).max())
        assert not basis[count:].any() and not basis[:, count:].any()
    (one,) = eigenvectors(np.ones((1, 3, 3), np.float32))  # two directions without curvature
    np.testing.assert_allclose(np.abs(one), [[0, 0, 3**-0.5]] * 3, atol=1e-6)


def test_a_step_is_no_longer_than_adams_in_one_basis():
    """No gradients make Adam's step longer than the limit, and some come close to it."""
    assert largest_step(*BETAS) == pytest.approx(LIMIT, rel=1e-6)
    assert largest_step(0.9, 0.8) == float("inf")
    worst = (0.9 / 0.95) ** AGES[::-1]  # a_k / b_k: what makes Cauchy and Schwarz's inequality an equation
    found = []
    for gradients in (worst, np.random.default_rng(0).standard_normal(1000), np.ones(1000)):
        first = second = 0.0
        for g in gradients:
            first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
        found.append(abs(first) / np.sqrt(second))
    assert max(found) < LIMIT * (1 + 1e-9) and found[0] > 0.99 * LIMIT


class Words(nn.Cell):
    """An embedding, its table again as a decoder, a LayerNorm and a dense layer between them."""

    def __init__(self):
        super().__init__()
        self.table, self.dense, self.norm = nn.Embedding(7, 4), nn.Dense(4, 4), nn.LayerNorm((4,))
        self.decoder = nn.Dense(4, 7, has_bias=False)
        fill(self, 0)
        self.decoder.weight = self.table.embedding_table

    def construct(self, ids):
        return self.decoder(self.norm(ops.tanh(self.dense(self.table(ids)))))


def words():
    rng = np.random.default_rng(0)
    return Tensor(rng.integers(0, 7, (6, 5)).astype(np.int32)), Tensor(
        rng.standard_normal((6, 5, 7)).astype(np.float32)
    )


NETWORKS = {
    "groups, depthwise, padding": (Mixed, images, {"block_size": 4}),
    "position": (Mixed, images, {"block_size": thor.BlockPlan(block_size=4, split="block", order="position")}),
    "tied table, norms": (Words, words, {"block_size": 3, "norms": True}),
    "transposed": (
        lambda: fill(nn.SequentialCell(nn.Conv2dTranspose(2, 3, 2, 2, pad_mode="valid", has_bias=True), nn.Flatten(),
                                       nn.Dense(192, 3)), 0), images, {"block_size": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_and_not_are_one_and_lower_the_loss(name):
    build, make_batch, options = NETWORKS[name]
    found = []
    for jit in (False, True):
        net = build()
        optimizer, step = make(net, jit=jit, lr=0.05, **options)
        found.append([float(step(*make_batch()).asnumpy()) for _ in range(12)])
        assert all(record.refreshes == 12 for record in optimizer.layers)
    np.testing.assert_allclose(found[0][:4], found[1][:4], rtol=1e-3)
    np.testing.assert_allclose(*found, rtol=5e-2)  # a rounding decides the eigenvectors of equal eigenvalues
    assert found[0][-1] < 0.5 * found[0][0]


def test_micro_batches_are_one_batch():
    found = []
    for parts in (1, 2):
        net = Mlp()
        _, step = make(net, accumulate=parts)
        for seed in range(4):
            x, y = batch(count=8, seed=seed)
            for part in range(parts):
                piece = slice(part * 8 // parts, (part + 1) * 8 // parts)
                step(x[piece], y[piece])
        found.append(matrices(net))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-4)  # eigenvectors of a factor of few examples


def test_the_loss_scale_does_not_matter():
    found = []
    for scale in (1.0, 1024.0):
        net = Mlp()
        _, step = make(net, loss_scale=scale, jit=True)
        for seed in range(4):
            step(*batch(count=24, seed=seed))
        found.append(matrices(net))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_batch_that_is_not_finite_changes_nothing():
    net = Mlp()
    optimizer, step = make(net, jit=True)
    step(*batch(count=24))
    before, state = values(net), values(optimizer)
    x, y = batch(count=24)
    step(Tensor(x.asnumpy() * np.float32("nan")), y)
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, before[name])
    changed = {name for name, value in values(optimizer).items() if value.tobytes() != state[name].tobytes()}
    assert changed == {"thor.bad_steps", "thor.skipped_steps"}


def test_decay_groups_and_schedules_are_those_of_an_optimizer():
    """Decoupled decay shrinks weights; a group has its own rate; a function is read at each step, and ends at 0."""
    net = Mlp()
    first = net.layers[0].trainable_params()
    groups = [{"params": first, "lr": 0.0, "weight_decay": 0.0}, {"params": net.layers[1].trainable_params()}]
    _, step = make(net, params=groups, weight_decay=0.5)
    before = values(net)
    step(*batch())
    after = values(net)
    assert all(np.array_equal(before[p.name], after[p.name]) for p in first)
    assert not np.array_equal(before["layers.1.weight"], after["layers.1.weight"])
    decayed, plain = Mlp(), Mlp()
    for each, decay in ((decayed, 0.5), (plain, 0.0)):
        _, step = make(each, lr=lambda s: 0.02 if s == 0 else 0.0, weight_decay=decay)
        assert float(step(*batch())) != float(step(*batch())) == float(step(*batch()))
    shrunk = values(Mlp())["layers.1.weight"] * 0.02 * 0.5
    np.testing.assert_allclose(values(plain)["layers.1.weight"] - values(decayed)["layers.1.weight"], shrunk, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(jit, tmp_path):
    def build():
        net = Words()
        return net, *make(net, jit=jit, interval=3, factor_interval=2, norms=True, block_size=3)

    net, optimizer, step = build()
    for _ in range(4):
        step(*words())
    ms.save_checkpoint(net, str(tmp_path / "net.ckpt"))
    ms.save_checkpoint(optimizer, str(tmp_path / "thor.ckpt"))
    other_net, other, other_step = build()
    ms.load_param_into_net(other_net, ms.load_checkpoint(str(tmp_path / "net.ckpt")))
    ms.load_param_into_net(other, ms.load_checkpoint(str(tmp_path / "thor.ckpt")))
    for _ in range(5):
        assert step(*words()).asnumpy().tobytes() == other_step(*words()).asnumpy().tobytes()
    for (name, one), (_, two) in zip(values(optimizer).items(), values(other).items(), strict=True):
        assert one.tobytes() == two.tobytes(), name


def test_a_checkpoint_of_inverses_is_refused(tmp_path):
    thor_of = {kind: thor.THOR(Mlp(), 0.1, **options)
               for kind, options in (("inverse", {"damping": 0.1, "split": "block"}), ("eigenbasis", {}))}  # fmt: skip
    ms.save_checkpoint(thor_of["inverse"], str(tmp_path / "thor.ckpt"))
    with pytest.raises(ValueError, match="the checkpoint belongs to another optimizer: .*eigenbasis"):
        ms.load_param_into_net(thor_of["eigenbasis"], ms.load_checkpoint(str(tmp_path / "thor.ckpt")))


WRONG = {
    "precondition must be one of inverse, eigenbasis, or None, but got 'x'": {"precondition": "x"},
    "damping must be left out with precondition='eigenbasis', for nothing is inverted, but got 0.1": {"damping": 0.1},
    "split must be 'block' with precondition='eigenbasis', but got 'block.rank'": {"split": "block+rank"},
    "clip must be left out": {"clip": 1e-3},
    "momentum must be left out with precondition='eigenbasis'": {"momentum": 0.5},
    "weight_decay_mode must be 'decoupled'": {"weight_decay_mode": "coupled"},
    "beta1 must be": {"beta1": "x"},
    "beta2 must be": {"beta2": 1.0},
    "rate_factor must be finite and greater than 0": {"rate_factor": 0.0},
}


@pytest.mark.parametrize("message", WRONG)
def test_settings_of_the_other_kind_are_refused(message):
    with pytest.raises((ValueError, TypeError), match=message):
        thor.THOR(Mlp(), 0.1, **({"precondition": "eigenbasis"} | WRONG[message]))


def test_settings_of_adam_are_refused_beside_inverses():
    with pytest.raises(ValueError, match="beta1 must be left out with precondition='inverse'"):
        thor.THOR(Mlp(), 0.1, 0.1, beta1=0.8)
    with pytest.raises(ValueError, match="rate_factor must be left out with precondition='inverse'"):
        thor.THOR(Mlp(), 0.1, 0.1, rate_factor=2.0)


def test_bases_and_inverses_are_told_apart():
    eigen, inverse = thor.THOR(Mlp(), 0.1), thor.THOR(Mlp(), 0.1, 0.1)
    assert [each.shape for each in eigen.bases("layers.0")] == [(6, 6), (4, 4)]
    with pytest.raises(ValueError, match="has no inverses: use bases"):
        eigen.inverses("layers.0")
    with pytest.raises(ValueError, match="has no eigenbases: use inverses"):
        inverse.bases("layers.0")
