"""tr A tr G = tr F, the trace of the empirical Fisher of the loss's terms, however a function is written.

It holds to rounding where the rows of a term are independent. Here they are so exactly: all rows of inputs have one
length, and those of one term are orthogonal. The Fisher is computed from the gradient of each term, in float64.
"""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import thor

RNG = np.random.default_rng(0)
B, T, INPUTS, OUTPUTS, LENGTH = 5, 6, 8, 3, 1.7
W = RNG.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)


def orthogonal(batch=B, rows=T):
    """[batch, rows, INPUTS], orthogonal within an example, all of one length."""
    q = [np.linalg.qr(RNG.standard_normal((INPUTS, INPUTS)))[0][:rows] for _ in range(batch)]
    return (LENGTH * np.array(q)).astype(np.float32)


X = orthogonal()
OF_TOKENS = RNG.standard_normal((B, T, OUTPUTS)).astype(np.float32)
OF_EXAMPLES = RNG.standard_normal((B, OUTPUTS)).astype(np.float32)
VALID = np.eye(T, dtype=np.float32)[RNG.integers(0, T, B)]  # one token of each example


class Dense(nn.Cell):
    """W x for x [B, T, I], with the weights of this module."""

    def __init__(self, has_bias=False):
        super().__init__()
        self.layer = nn.Dense(INPUTS, OUTPUTS, has_bias=has_bias)
        self.layer.weight.set_data(Tensor(W))

    def construct(self, x):
        return self.layer(x)


class Flattened(Dense):
    """The same, of rows that were folded into one axis."""

    def construct(self, x):
        return self.layer(x.reshape(-1, INPUTS)).reshape(-1, T, OUTPUTS)


class Convolution(nn.Cell):
    """The same, as a convolution with a 1 x 1 kernel over images of 2 x 3 pixels."""

    def __init__(self, has_bias=False):
        super().__init__()
        self.layer = nn.Conv2d(INPUTS, OUTPUTS, 1, has_bias=has_bias)
        self.layer.weight.set_data(Tensor(W[:, :, None, None]))

    def construct(self, x):
        image = x.transpose(0, 2, 1).reshape(-1, INPUTS, 2, 3)
        return self.layer(image).reshape(-1, OUTPUTS, T).transpose(0, 2, 1)


class OneByOne(Dense):
    """The same, with a call of the layer for each token."""

    def construct(self, x):
        return ops.stack([self.layer(x[:, t]) for t in range(T)], 1)


def token_mean(output, target):
    return 0.5 * ((output - target) ** 2).sum(-1).mean()


def pooled(output, target):
    return 0.5 * ((output.mean(1) - target) ** 2).sum(-1).mean()


def masked_mean(output, target):
    of_token = 0.5 * ((output - target) ** 2).sum(-1) * Tensor(VALID)
    return of_token.sum() / VALID.sum()


def fisher(deltas, inputs, terms):
    """The Fisher of terms from their rows: deltas [M, R, O], inputs [M, R, I]."""
    gradients = np.einsum("mro,mri->moi", deltas.astype(np.float64), inputs.astype(np.float64)).reshape(terms, -1)
    return gradients.T @ gradients / terms


def tokens_fisher(x=X, w=W):
    deltas = x @ w.T - OF_TOKENS
    return fisher(deltas.reshape(B * T, 1, -1), x.reshape(B * T, 1, -1), B * T)


def pooled_fisher(x=X):
    delta = (x @ W.T).mean(1) - OF_EXAMPLES
    return fisher(np.repeat(delta[:, None] / T, T, 1), x, B)


def valid_fisher():
    deltas, at = X @ W.T - OF_TOKENS, VALID.astype(bool)
    return fisher(deltas[at][:, None], X[at][:, None], B)


def factors(net, loss_fn, x, y, jit=False, steps=1, **options):
    """(A, G) of the layer ``layer``, and the direction that its weight takes with a damping of 0.1."""
    settings = {
        "momentum": 0.0,
        "interval": 1,
        "factor_decay": 0.0,
        "split": "block",
        "refresh": thor.TraceRule.thor_nt(),
    }
    optimizer = thor.THOR(net, 1.0, 0.1, **(settings | options))
    before = net.layer.weight.asnumpy().copy()
    step = thor.TrainStep(net, loss_fn, optimizer, jit=jit)
    for _ in range(steps):
        step(Tensor(x), Tensor(y))
    return *optimizer.factors("layer"), (before - net.layer.weight.asnumpy()).reshape(OUTPUTS, -1)


CASES = {
    "tokens": (token_mean, OF_TOKENS, "expand", tokens_fisher),
    "one token of six": (masked_mean, OF_TOKENS, "expand", valid_fisher),
    "pooled": (pooled, OF_EXAMPLES, "pooled", pooled_fisher),
}
WRITTEN = {"dense": Dense, "flattened": Flattened, "convolution": Convolution}


@pytest.mark.parametrize("case", CASES)
def test_one_function_has_one_direction_however_it_is_written(case):
    """In float32; and the trace of its Fisher is that of the terms."""
    loss_fn, y, sharing, exact = CASES[case]
    x = X.copy()
    if case == "one token of six":
        x[VALID == 0] = 100.0  # padding, which must not matter
    ways = WRITTEN | ({"one by one": OneByOne} if case == "pooled" else {})
    directions = {}
    for name, make in ways.items():
        a, g, directions[name] = factors(make(), loss_fn, x, y, weight_sharing=sharing)
        np.testing.assert_allclose(np.trace(a) * np.trace(g), np.trace(exact()), rtol=1e-4, err_msg=name)
    for name, direction in directions.items():
        np.testing.assert_allclose(direction, directions["dense"], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("sharing", ["expand", "pooled", "reduce"])
@pytest.mark.parametrize("split", ["block", "block+mean", "block+rank"])
def test_examples_of_one_row_are_the_same_for_every_sharing(sharing, split, jit):
    """With the bias as a coordinate of A, and whatever the split."""
    rows, target = X[:, 0], OF_TOKENS[:, 0]
    options = {"split": split, "rank": 2, "weight_sharing": sharing}
    deltas = rows @ W.T - target
    exact = fisher(deltas[:, None], np.concatenate([rows, np.ones((B, 1))], 1)[:, None], B)

    def loss_fn(output, y):
        return 0.5 * ((output - y) ** 2).sum(-1).mean()

    net = Dense(has_bias=True)
    net.layer.bias.set_data(Tensor(np.zeros(OUTPUTS, np.float32)))
    a, g, _ = factors(net, loss_fn, rows, target, jit=jit, **options)
    assert a.shape == (INPUTS + 1, INPUTS + 1)
    np.testing.assert_allclose(np.trace(a) * np.trace(g), np.trace(exact), rtol=1e-4)


@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
def test_reduce_is_exact_where_an_examples_rows_are_alike(make):
    x = np.repeat(X[:, :1], T, 1)
    a, g, _ = factors(make(), pooled, x, OF_EXAMPLES, weight_sharing="reduce")
    np.testing.assert_allclose(np.trace(a) * np.trace(g), np.trace(pooled_fisher(x)), rtol=1e-4)


@pytest.mark.parametrize("share", [0.4, 0.8])
@pytest.mark.parametrize("sharing", ["expand", "pooled"])
@pytest.mark.parametrize("make", [Dense, Convolution])
def test_a_share_of_the_examples_estimates_the_same(make, sharing, share):
    """Examples that are copies of each other: any share of them gives the factors of all."""
    x, loss_fn = np.repeat(X[:1], B, 0), pooled if sharing == "pooled" else token_mean
    y = np.repeat((OF_EXAMPLES if sharing == "pooled" else OF_TOKENS)[:1], B, 0)
    a, g, _ = factors(make(), loss_fn, x, y, weight_sharing=sharing)
    few = factors(make(), loss_fn, x, y, weight_sharing=sharing, factor_share=share)
    np.testing.assert_allclose(few[0], a, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(few[1], g, rtol=1e-4, atol=1e-6)


class Sometimes(nn.Cell):
    """A layer that some batches call, and a bias that all of them train."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Dense(INPUTS, OUTPUTS, has_bias=False), nn.Dense(INPUTS, OUTPUTS)
        self.layer.weight.set_data(Tensor(W))

    def construct(self, x, y):
        rows = x.reshape(-1, INPUTS)
        output = self.layer(rows) if x.shape[0] == 1 else self.other(rows)
        return 0.5 * ((output - y) ** 2).sum(-1).mean()


@pytest.mark.parametrize("split", ["block", "block+mean", "block+rank"])
@pytest.mark.parametrize("passes", [(1,), (0, 1), (1, 0, 0, 0, 0, 0)])
def test_a_layer_that_a_share_of_the_passes_uses(split, passes):
    """Its Fisher is that share of the Fisher of the passes that use it: the share counts once."""
    decay, rows, y = 0.9, X[0], OF_TOKENS[0]
    net = Sometimes()
    settings = {"factor_decay": decay, "factor_interval": 1, "interval": 100, "split": split, "rank": 2}
    optimizer = thor.THOR(net, 0.0, 0.1, weight_sharing="expand", **settings)
    step = thor.TrainStep(net, None, optimizer, jit=False)
    for used in passes:
        x = rows[None] if used else rows.reshape(2, -1, INPUTS)
        step(Tensor(x), Tensor(y))
    weights = decay ** np.arange(len(passes) - 1, -1, -1.0)
    share = (weights * passes).sum() / weights.sum()
    exact = np.trace(fisher((rows @ W.T - y)[:, None], rows[:, None], T))
    a, g = optimizer.factors("layer")
    if split == "block+rank":  # traces are of the blocks
        a, g = (f.scale * f.blocks.asnumpy()[0, 0] for f in (optimizer.captured[0].a, optimizer.captured[0].g))
    np.testing.assert_allclose(np.trace(a), LENGTH**2, rtol=1e-4)
    np.testing.assert_allclose(np.trace(a) * np.trace(g), share * exact, rtol=1e-4)


class Words(nn.Cell):
    """An embedding, of whose tokens a mask leaves some to the loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(9, OUTPUTS)

    def construct(self, ids):
        return self.layer(ids)


@pytest.mark.parametrize("case", ["tokens", "one token of six", "pooled"])
def test_an_embeddings_inputs_are_one_hot_rows(case):
    loss_fn, y, sharing, _ = CASES[case]
    ids = np.array([RNG.permutation(9)[:T] for _ in range(B)]).astype(np.int32)
    net = Words()
    optimizer = thor.THOR(net, 0.0, 0.1, weight_sharing=sharing, factor_decay=0.0, interval=1)
    thor.TrainStep(net, loss_fn, optimizer, jit=False)(Tensor(ids), Tensor(y))
    one_hot, table = np.eye(9)[ids], net.layer.embedding_table.asnumpy()
    if case == "pooled":
        delta = table[ids].mean(1) - y
        exact = fisher(np.repeat(delta[:, None] / T, T, 1), one_hot, B)
    else:
        at = VALID.astype(bool) if case == "one token of six" else np.ones((B, T), bool)
        exact = fisher((table[ids] - y)[at][:, None], one_hot[at][:, None], at.sum())
    a, g = optimizer.factors("layer")
    np.testing.assert_allclose(a.sum() * np.trace(g), np.trace(exact), rtol=1e-4)


class Tied(nn.Cell):
    """A table that embeds and decodes."""

    def __init__(self, scale):
        super().__init__()
        self.layer, self.decoder, self.scale = nn.Embedding(9, 4), nn.Dense(4, 9, has_bias=False), scale
        self.decoder.weight = self.layer.embedding_table
        self.layer.embedding_table.set_data(Tensor(RNG.standard_normal((9, 4)).astype(np.float32)))

    def construct(self, ids):
        return self.decoder(ops.tanh(self.layer(ids)) * self.scale)


@pytest.mark.parametrize("loss_scale", [1.0, 64.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_a_tied_tables_fisher_is_the_sum_of_its_uses_fishers(scale, loss_scale):
    """However different the two are; each use's is tr A tr G of its own."""
    ids, y = RNG.integers(0, 9, (B, T)).astype(np.int32), RNG.standard_normal((B, T, 9)).astype(np.float32)
    net = Tied(scale)
    optimizer = thor.THOR(net, 0.0, 0.1, factor_decay=0.0, interval=1, loss_scale=loss_scale)
    thor.TrainStep(net, token_mean, optimizer, jit=False)(Tensor(ids), Tensor(y))
    table = net.layer.embedding_table.asnumpy().astype(np.float64)
    hidden = np.tanh(table[ids])
    delta = scale * hidden @ table.T - y
    inner = scale * (delta @ table) * (1 - hidden**2)
    decoder = (delta**2).sum(-1).mean() * (scale**2 * hidden**2).sum(-1).mean()
    embedding = (inner**2).sum(-1).mean()
    a, g = optimizer.factors("layer")
    np.testing.assert_allclose(a.sum() * np.trace(g), decoder + embedding, rtol=1e-3)


def test_a_tied_table_with_a_tiny_fisher_is_in_use():
    """G's count of uses is the trace of its Fisher, which says nothing of whether it was called."""
    ids, y = RNG.integers(0, 9, (B, T)).astype(np.int32), RNG.standard_normal((B, T, 9)).astype(np.float32)
    optimizer = thor.THOR(Tied(1.0), 0.0, thor.RelativeDamping(0.01), interval=1)

    def tiny(output, target):
        return 1e-4 * token_mean(output, target)

    step = thor.TrainStep(optimizer.network, tiny, optimizer, jit=False)
    step(Tensor(ids), Tensor(y))
    assert [(record.layer, record.decision.value) for record in optimizer.history] == [("layer", "update")]


def test_the_default_is_by_the_kind_of_network():
    assert [layer.weight_sharing for layer in thor.THOR(Dense(), 0.1, 0.1).layers] == ["pooled"]
    assert [layer.weight_sharing for layer in thor.THOR(Words(), 0.1, 0.1).layers] == ["expand"]
    net = Sometimes()
    chosen = thor.THOR(net, 0.1, 0.1, weight_sharing={"^other$": "reduce"}).layers
    assert {layer.name: layer.weight_sharing for layer in chosen} == {"layer": "pooled", "other": "reduce"}


@pytest.mark.parametrize("value", ["token", 3, {"layer": "tokens"}, {"(": "expand"}])
def test_a_wrong_sharing_is_refused(value):
    with pytest.raises(ValueError, match="weight_sharing must (be one of pooled, expand, reduce|map regular)"):
        thor.THOR(Dense(), 0.1, 0.1, weight_sharing=value)
