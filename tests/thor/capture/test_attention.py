"""nn.MultiheadAttention: a captured one computes the same, and its projections' factors are those of dense layers.

The reference is attention and its backward pass written out in float64, and a network that computes the same function
with a dense layer for every projection.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.support.networks import make, values
from tests.support.reference import damped_inverse, pi_damping, with_ones

B, L, S, E, HEADS = 4, 3, 5, 8, 2
RNG = np.random.default_rng(0)
CLOSE = {"rtol": 1e-3, "atol": 1e-5}
TOKENS = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 1, 1]], np.float32)  # those with a term in the loss
PADDED = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0]], bool)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def filled(cell):
    """A Cell with weights far from a small start."""
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(0.5 * normal(*parameter.shape)))
    return cell


def scores_mask(padding):
    """[B, 1, 1, S]: -inf at padded keys."""
    return ops.zeros_like(padding, dtype=ms.float32).masked_fill(padding, float("-inf")).reshape(B, 1, 1, -1)


class Attending(nn.Cell):
    """An attention over inputs [B, T, E], whatever the order of its own axes."""

    def __init__(self, crossed=True, batch_first=True, **options):
        super().__init__()
        self.attention = filled(nn.MultiheadAttention(E, HEADS, batch_first=batch_first, **options))
        self.crossed, self.batch_first = crossed, batch_first

    def construct(self, x, memory, padding):
        if not self.batch_first:
            x, memory = x.swapaxes(0, 1), memory.swapaxes(0, 1)
        if self.crossed:
            y = self.attention(x, memory, memory, key_padding_mask=padding, need_weights=False)[0]
        else:
            y = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return y if self.batch_first else y.swapaxes(0, 1)


class Twin(nn.Cell):
    """The same function, with a dense layer for every projection."""

    def __init__(self, net):
        super().__init__()
        self.crossed, source = net.crossed, net.attention
        separate = source.in_proj_weight is None
        weights = ([getattr(source, f"{part}_proj_weight").asnumpy() for part in "qkv"] if separate
                   else np.split(source.in_proj_weight.asnumpy(), 3))  # fmt: skip
        biases = [None] * 3 if source.in_proj_bias is None else np.split(source.in_proj_bias.asnumpy(), 3)
        self.q, self.k, self.v = (dense(w, b) for w, b in zip(weights, biases, strict=True))
        out = source.out_proj
        self.out = dense(out.weight.asnumpy(), None if out.bias is None else out.bias.asnumpy())

    def heads(self, x):
        return x.reshape(B, -1, HEADS, E // HEADS).transpose(0, 2, 1, 3)

    def construct(self, x, memory, padding):
        keys = memory if self.crossed else x
        q, k, v = self.heads(self.q(x)), self.heads(self.k(keys)), self.heads(self.v(keys))
        scores = ops.matmul(q, k.swapaxes(2, 3)) * (E // HEADS) ** -0.5 + scores_mask(padding)
        y = ops.matmul(ops.softmax(scores, -1), v)
        return self.out(y.transpose(0, 2, 1, 3).reshape(B, -1, E))


def dense(weight, bias):
    layer = nn.Dense(weight.shape[1], weight.shape[0], has_bias=bias is not None)
    layer.weight.set_data(Tensor(weight.copy()))
    if bias is not None:
        layer.bias.set_data(Tensor(bias.copy()))
    return layer


def token_loss(output, target):
    """The mean over the tokens that have a term."""
    return (((output - target) ** 2).sum(-1) * Tensor(TOKENS)).sum() / TOKENS.sum()


def data(crossed=True, width=E):
    x = normal(B, L, E)
    memory = normal(B, S, width) if crossed else normal(B, L, E)
    padding = PADDED if crossed else PADDED[:, :L]
    return tuple(Tensor(each) for each in (x, memory, padding, normal(B, L, E)))


def in_float64(net, x, memory, padding, y):
    """Inputs and output gradients of (q, k, v, out), [B, rows, width], by attention's own backward pass."""
    attention = net.attention
    x, memory, padding, y = (each.asnumpy().astype(np.float64) for each in (x, memory, padding, y))
    keys = memory if net.crossed else x
    w_q, w_k, w_v = np.split(attention.in_proj_weight.asnumpy().astype(np.float64), 3)
    bias = attention.in_proj_bias
    b_q, b_k, b_v = np.split(np.zeros(3 * E) if bias is None else bias.asnumpy().astype(np.float64), 3)
    w_out = attention.out_proj.weight.asnumpy().astype(np.float64)
    b_out = 0.0 if attention.out_proj.bias is None else attention.out_proj.bias.asnumpy().astype(np.float64)

    def heads(rows):
        return rows.reshape(B, -1, HEADS, E // HEADS).transpose(0, 2, 1, 3)

    def rows(each):
        return each.transpose(0, 2, 1, 3).reshape(B, -1, E)

    q, k, v = heads(x @ w_q.T + b_q), heads(keys @ w_k.T + b_k), heads(keys @ w_v.T + b_v)
    root = (E // HEADS) ** 0.5
    scores = np.where(padding[:, None, None, :] > 0, -np.inf, q @ k.swapaxes(2, 3) / root)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    inner = rows(p @ v)
    g_out = 2 * (inner @ w_out.T + b_out - y) * TOKENS[:, :, None] / TOKENS.sum()
    g_inner = heads(g_out @ w_out)
    g_p = g_inner @ v.swapaxes(2, 3)
    g_scores = p * (g_p - (p * g_p).sum(-1, keepdims=True)) / root
    g_q, g_k, g_v = g_scores @ k, g_scores.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g_inner
    return [(x, rows(g_q)), (keys, rows(g_k)), (keys, rows(g_v)), (inner, g_out)]


def factors_of(inputs, gradients, sharing, bias):
    """(A, G) of a dense layer by its definition, from [B, rows, width]."""
    if sharing == "reduce":
        inputs, gradients = inputs.mean(1), gradients.sum(1)
    a, g = inputs.reshape(-1, inputs.shape[-1]), gradients.reshape(-1, gradients.shape[-1])
    if sharing == "expand":
        counts = np.abs(g).max(1) > 0
        a, g = a[counts], g[counts]
    a = with_ones(a) if bias else a
    return a.T @ a / len(a), (len(g) if sharing == "expand" else B) * g.T @ g


@pytest.mark.parametrize(
    ("crossed", "batch_first", "has_bias", "jit", "sharing"),
    [(True, True, True, False, "expand"), (True, False, False, True, "expand"), (False, True, True, True, "pooled"),
     (True, False, True, False, "pooled"), (False, False, False, False, "reduce"), (True, True, True, False, "reduce")],
)  # fmt: skip
def test_every_projection_has_the_factors_and_the_step_of_the_formula(crossed, batch_first, has_bias, jit, sharing):
    """With keys that are padding and tokens without a term; each third of in_proj by its own inputs."""
    net, batch = Attending(crossed, batch_first, has_bias=has_bias), data(crossed)
    rows = in_float64(net, *batch)
    before = values(net)
    optimizer, step = make(net, loss_fn=token_loss, jit=jit, split="block", weight_sharing=sharing)
    assert [layer.name for layer in optimizer.layers] == ["attention.in_proj", "attention.out_proj"]
    step(*batch)
    after = values(net)
    a, g = optimizer.factors("attention.in_proj")
    a_out, g_out = optimizer.factors("attention.out_proj")
    found = [*zip(a, g, strict=True), (a_out, g_out)]
    names = ["attention.in_proj_weight"] * 3 + ["attention.out_proj.weight"]
    for at, ((inputs, gradients), pair, name) in enumerate(zip(rows, found, names, strict=True)):
        of_third = "pooled" if (at, sharing) == (1, "reduce") else sharing  # keys' gradients sum to zero
        exact = factors_of(inputs, gradients, of_third, has_bias)
        for mine, theirs in zip(pair, exact, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max(), err_msg=f"{at}")
        flat = inputs.reshape(-1, inputs.shape[-1])
        gradient = gradients.reshape(-1, E).T @ (with_ones(flat) if has_bias else flat)
        damp_a, damp_g = pi_damping(*exact, 0.1)
        direction = damped_inverse(exact[1], damp_g) @ gradient @ damped_inverse(exact[0], damp_a)
        part = slice(at * E, (at + 1) * E) if at < 3 else slice(None)
        moved = (before[name] - after[name])[part] / 0.05
        np.testing.assert_allclose(moved, direction[:, :E], rtol=1e-2, atol=2e-3 * np.abs(direction).max())
        if has_bias:
            bias = name.replace("weight", "bias")
            moved = (before[bias] - after[bias])[part] / 0.05
            np.testing.assert_allclose(moved, direction[:, E], rtol=1e-2, atol=2e-3 * np.abs(direction).max())


def trained(net, batch, **options):
    """The optimizer after three steps."""
    optimizer, step = make(net, loss_fn=token_loss, damping=0.3, lr=0.02, **options)
    for _ in range(3):
        step(*batch)
    return optimizer


@pytest.mark.parametrize(
    ("crossed", "batch_first", "jit", "options"),
    [(True, False, False, {"block_size": 3, "weight_sharing": "expand"}),
     (False, True, True, {"block_size": 3, "weight_sharing": "expand"}),
     (False, False, False, {"block_size": 3, "split": "block", "loss_scale": 64.0}),
     (True, False, False, {"factor_share": 0.5, "weight_sharing": "pooled"}),
     (False, False, True, {"weight_sharing": "reduce"})],
)  # fmt: skip
def test_it_steps_as_dense_layers_do(crossed, batch_first, options, jit):
    """The thirds of in_proj move as three layers; the order of axes does not matter, nor where factors are cut."""
    net, batch = Attending(crossed, batch_first), data(crossed)
    twin = Twin(net)
    mine = trained(net, batch, jit=jit, **options)
    if options.get("weight_sharing") == "reduce":
        options = options | {"weight_sharing": {"^k$": "pooled", "": "reduce"}}
    theirs = trained(twin, batch, jit=jit, **options)
    for side, found in enumerate(mine.factors("attention.in_proj")):
        for third, name in zip(found, "qkv", strict=True):
            np.testing.assert_allclose(third, theirs.factors(name)[side], **CLOSE)
    moved, expected = values(net), values(twin)
    for part in ("weight", "bias"):
        thirds = np.concatenate([expected[f"{name}.{part}"] for name in "qkv"])
        np.testing.assert_allclose(moved[f"attention.in_proj_{part}"], thirds, **CLOSE)
        np.testing.assert_allclose(moved[f"attention.out_proj.{part}"], expected[f"out.{part}"], **CLOSE)


@pytest.mark.parametrize(
    ("jit", "sharing", "of_twin"),
    [(True, "expand", "expand"), (False, "reduce", {"^k$": "pooled", "": "reduce"})],
    ids=["expand", "reduce"],
)
def test_weights_of_their_own_step_as_dense_layers_do(jit, sharing, of_twin):
    """Where keys have another width; without biases, for the three of MindSpore's are one Parameter."""
    net, batch = Attending(kdim=6, vdim=6, has_bias=False, batch_first=False), data(width=6)
    twin = Twin(net)
    mine = trained(net, batch, jit=jit, block_size=4, weight_sharing=sharing)
    theirs = trained(twin, batch, jit=jit, block_size=4, weight_sharing=of_twin)
    moved, expected = values(net), values(twin)
    for name in "qkv":
        for one, other in zip(mine.factors(f"attention.{name}_proj"), theirs.factors(name), strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)
        np.testing.assert_allclose(moved[f"attention.{name}_proj_weight"], expected[f"{name}.weight"], **CLOSE)


def test_a_low_rank_part_of_full_rank_is_exact():
    net, batch = Attending(), data()
    rows = in_float64(net, *batch)
    optimizer, step = make(net, loss_fn=token_loss, lr=0.0, block_size=4, split="block+rank", rank=E + 1)
    step(*batch)
    for side, thirds in enumerate(optimizer.factors("attention.in_proj")):
        for third, of_third in zip(thirds, rows, strict=False):
            exact = factors_of(*of_third, "pooled", True)[side]
            np.testing.assert_allclose(third, exact, rtol=1e-3, atol=1e-3 * np.abs(exact).max())


@pytest.mark.parametrize("crossed", [True, False])
def test_the_traces_multiply_to_the_fishers(crossed):
    """Of an example's one term, where its rows are independent: orthogonal, of one length."""
    x, memory = (np.array([1.3 * np.linalg.qr(normal(E, E))[0][:rows] for _ in range(B)]) for rows in (L, S))
    net = Attending(crossed, has_bias=False)
    none = np.zeros((B, S if crossed else L), bool)
    batch = tuple(Tensor(each) for each in (x.astype(np.float32), memory.astype(np.float32), none, normal(B, E)))
    weight = net.attention.in_proj_weight

    def of_example(x, memory, padding, y):
        return pooled(net(x, memory, padding), y)

    gradient = ms.grad(of_example, None, weight)
    exact = np.zeros(3)
    for at in range(B):
        of_thirds = gradient(*(each[at : at + 1] for each in batch)).asnumpy().astype(np.float64).reshape(3, -1)
        exact += (of_thirds**2).sum(1) / B
    optimizer, step = make(net, loss_fn=pooled, weight_sharing="pooled", split="block", lr=0.0)
    step(*batch)
    a, g = optimizer.factors("attention.in_proj")
    np.testing.assert_allclose(np.einsum("cii->c", a) * np.einsum("cii->c", g), exact, rtol=1e-4)


def pooled(output, target):
    return ((output.mean(1) - target) ** 2).sum(-1).mean()
