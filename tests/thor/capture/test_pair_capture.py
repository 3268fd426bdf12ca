"""Embeddings, normalisation and tied decoders: their factors, their steps, and that the network stays as it was."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import thor
from tests.support import reference
from tests.support.networks import fill, gradients, make, squared_error, values
from thor.capture.targets import find_targets

CLOSE = {"rtol": 2e-4, "atol": 1e-6}
VOCABULARY, WIDTH = 9, 4


class Words(nn.Cell):
    """Embedding, LayerNorm, dense; the mean over positions of squared outputs is left to the loss."""

    def __init__(self, seed=0):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm((WIDTH,))
        self.dense = nn.Dense(WIDTH, 3)
        fill(self, seed)

    def construct(self, ids):
        return self.dense(self.norm(self.embedding(ids)))


class Decoder(nn.Cell):
    """x W^T with another Cell's weight."""

    thor_kind = "dense"

    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.bias = Parameter(Tensor(np.zeros(weight.shape[0], np.float32)), name="bias")

    def construct(self, x):
        return ops.matmul(x, self.weight.T) + self.bias


class Tied(nn.Cell):
    """An embedding and the decoder of its table; ``dense`` makes it an nn.Dense."""

    def __init__(self, dense=False, seed=0):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.tanh = nn.Tanh()
        self.decoder = nn.Dense(WIDTH, VOCABULARY) if dense else Decoder(self.embedding.embedding_table)
        self.decoder.weight = self.embedding.embedding_table
        fill(self, seed)

    def construct(self, ids):
        return self.decoder(self.tanh(self.embedding(ids)))


class Images(nn.Cell):
    """Convolution, BatchNorm, tanh, mean over pixels."""

    def __init__(self, seed=0):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2, pad_mode="valid")
        self.norm = nn.BatchNorm2d(3)
        self.tanh = nn.Tanh()
        fill(self, seed)

    def construct(self, x):
        return self.tanh(self.norm(self.conv(x))).mean((2, 3))


def words(count=4, length=3, outputs=3, seed=1):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCABULARY - 2, (count, length)).astype(np.int32)  # two tokens never occur
    target = rng.standard_normal((count, length, outputs)).astype(np.float32)
    return Tensor(ids), Tensor(target)


def pixels(count=4, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 2, 4, 5)) + 0.4
    return Tensor(x.astype(np.float32)), Tensor(rng.standard_normal((count, 3)).astype(np.float32))


def per_example(output, target):
    """A mean over examples, and over what each example holds."""
    return ((output - target) ** 2).mean()


def output_gradients(net, cell_name, loss_fn, x, y):
    """dL/d(output of a child), by adding a zero Parameter to it."""
    cell = getattr(net, cell_name)

    class Probe(nn.Cell):
        def __init__(self, inner, shape):
            super().__init__(auto_prefix=False)
            self.inner = inner
            self.zero = Parameter(Tensor(np.zeros(shape, np.float32)), name="zero")

        def construct(self, x):
            return self.inner(x) + self.zero

    shapes = []
    probe = Probe(cell, _shape_of(net, cell_name, x, shapes))
    net._cells[cell_name] = probe
    try:
        _, grad = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, [probe.zero])(x, y)
    finally:
        net._cells[cell_name] = cell
    return grad[0].asnumpy().astype(np.float64)


def _shape_of(net, cell_name, x, shapes):
    handle = getattr(net, cell_name).register_forward_hook(lambda cell, i, o: shapes.append(o.shape))
    net(x)
    handle.remove()
    return shapes[0]


def test_an_embeddings_a_holds_token_frequencies_and_its_g_is_a_dense_layers(mode):
    net, (ids, target) = Words(), words()
    wanted_g = None
    if mode == "PYNATIVE_MODE":
        rows = output_gradients(net, "embedding", per_example, ids, target).reshape(-1, WIDTH)
        wanted_g = len(rows) * rows.T @ rows
    optimizer, step = make(net, loss_fn=per_example, jit=mode == "GRAPH_MODE")
    step(ids, target)
    a, g = optimizer.factors("embedding")
    counts = np.bincount(ids.asnumpy().ravel(), minlength=VOCABULARY)
    np.testing.assert_allclose(a, counts / counts.sum(), rtol=1e-6)
    if wanted_g is not None:
        np.testing.assert_allclose(g, wanted_g, **CLOSE)


def test_an_embedding_steps_as_the_dense_layer_of_its_one_hot_inputs():
    """x = W^T onehot: a dense layer with A = diag(frequencies), so all of THOR's step must agree."""
    ids, target = words(count=5, length=1, outputs=WIDTH)
    ids, target = Tensor(ids.asnumpy()[:, 0]), Tensor(target.asnumpy()[:, 0])
    embedding, dense = nn.Embedding(VOCABULARY, WIDTH), nn.Dense(VOCABULARY, WIDTH, has_bias=False)
    dense.weight.set_data(Tensor(embedding.embedding_table.asnumpy().T.copy()))
    one_hot = Tensor(np.eye(VOCABULARY, dtype=np.float32)[ids.asnumpy()])
    for net, x in ((embedding, ids), (dense, one_hot)):
        _, step = make(net, split="block", clip=1e-3)
        for _ in range(3):
            step(x, target)
    np.testing.assert_allclose(embedding.embedding_table.asnumpy(), dense.weight.asnumpy().T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", ["gamma", "beta"])
def test_a_layer_norms_g_is_the_exact_diagonal_fisher(part):
    """Of the examples, one at a time: a LayerNorm does not mix examples, so each has a gradient of its own."""
    net, (ids, target) = Words(), words()
    exact = np.zeros(WIDTH)
    for i in range(len(ids)):
        grads = gradients(net, per_example, ids[i : i + 1], target[i : i + 1])
        exact += grads[f"norm.{part}"].astype(np.float64) ** 2 / len(ids)
    optimizer, step = make(net, loss_fn=per_example, norms=True, weight_sharing="pooled")
    step(ids, target)
    np.testing.assert_allclose(optimizer.factors(f"norm.{part}")[1], exact, **CLOSE)


def test_a_batch_norms_g_sums_each_examples_positions_before_squaring():
    net, (x, target) = Images(), pixels()
    net.set_train()
    g = output_gradients(net, "norm", squared_error, x, target)
    before = net.conv(x).asnumpy().astype(np.float64)
    normal = (before - before.mean((0, 2, 3), keepdims=True)) / np.sqrt(before.var((0, 2, 3), keepdims=True) + 1e-5)
    optimizer, step = make(net, norms=True)
    step(x, target)
    for part, rows in (("gamma", (g * normal).sum((2, 3))), ("beta", g.sum((2, 3)))):
        np.testing.assert_allclose(optimizer.factors(f"norm.{part}")[1], len(x) * (rows**2).sum(0), **CLOSE)


def test_a_normalisation_steps_by_its_gradient_over_the_damped_fisher():
    net, (ids, target) = Words(), words()
    before, grads = values(net), gradients(net, per_example, ids, target)
    optimizer, step = make(net, loss_fn=per_example, norms=True, lr=0.05, damping=0.1)
    step(ids, target)
    for part in ("gamma", "beta"):
        name = f"norm.{part}"
        fisher = optimizer.factors(name)[1]
        wanted = before[name] - 0.05 * grads[name] / (fisher + 0.1)
        np.testing.assert_allclose(getattr(net.norm, part).asnumpy(), wanted, rtol=1e-5)
        np.testing.assert_allclose(optimizer.inverses(name)[1], 1 / (fisher + 0.1), rtol=1e-5)


def test_a_tied_decoder_with_an_activation_is_left_out_with_its_table():
    """The port stands behind the whole layer, where the gradient is the activation's and not the product's."""
    net = Tied(dense=True)
    net.decoder.activation, net.decoder.activation_flag = nn.Tanh(), True
    targets, left_out = find_targets(net)
    assert not targets and {item.name for item in left_out} == {"embedding", "decoder"}
    assert all("decoder, which has its weight too, has an activation" in item.reason for item in left_out)


def test_a_layer_norm_over_more_than_its_last_axis_is_left_out():
    net = nn.SequentialCell(nn.Dense(4, 4), nn.LayerNorm((4,), begin_norm_axis=1), nn.LayerNorm((4,)))
    targets, left_out = find_targets(net, norms=True)
    assert [target.name for target in targets] == ["0", "2.gamma", "2.beta"]
    assert [(item.name, item.reason) for item in left_out] == [
        ("1", "begin_norm_axis is 1, and -1 alone is the last axis of any input")
    ]


def test_an_embedding_without_the_declared_weight_is_left_out_with_the_reason():
    class Table(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rows = Parameter(Tensor(np.ones((9, 3), np.float32)), name="rows")

        def construct(self, ids):
            return ops.gather(self.rows, ids, 0)

    thor.register(Table, kind="embedding", weight="row")
    net = nn.SequentialCell(Table(), nn.Dense(3, 2))
    assert [item.reason for item in thor.THOR(net, 0.1, 0.1).left_out] == [
        "has no Parameter 'row', which its class is declared to have"
    ]


def test_a_batch_norm_with_channels_last_is_left_out():
    """MindSpore makes one on a GPU only."""
    net = Images()
    net.norm.format = "NHWC"
    assert ("norm", "data_format NHWC") in [(item.name, item.reason) for item in find_targets(net, norms=True)[1]]


@pytest.mark.parametrize("dense", [False, True])
def test_a_tied_table_has_one_pair_of_factors_the_balanced_sum_of_its_two_uses(dense):
    net, (ids, target) = Tied(dense), words(outputs=VOCABULARY)
    inner = np.tanh(net.embedding(ids).asnumpy()).reshape(-1, WIDTH).astype(np.float64)
    out = output_gradients(net, "decoder", per_example, ids, target).reshape(-1, VOCABULARY)
    grad = output_gradients(net, "embedding", per_example, ids, target).reshape(-1, WIDTH)
    count = len(inner)
    frequencies = np.bincount(ids.asnumpy().ravel(), minlength=VOCABULARY) / count
    uses = [(frequencies, count * grad.T @ grad), (count * (out**2).sum(0), inner.T @ inner / count)]
    rows, columns = np.zeros(VOCABULARY), np.zeros((WIDTH, WIDTH))
    for r, c in uses:
        scale = np.sqrt((np.trace(c) / WIDTH) / r.mean())
        rows, columns = rows + r * scale, columns + c / scale
    rows *= sum(r.sum() * np.trace(c) for r, c in uses) / (rows.sum() * np.trace(columns))
    optimizer, step = make(net, loss_fn=per_example)
    assert [(r.name, r.kind) for r in optimizer.layers] == [("embedding", "tied")]
    assert {item.name: item.reason for item in optimizer.left_out} == {"decoder.bias": "bias of a tied decoder"}
    name = net.embedding.embedding_table.name  # MindSpore names it after the last Cell that holds it
    before, grads = values(net)[name], gradients(net, per_example, ids, target)
    step(ids, target)
    a, g = optimizer.factors("embedding")
    np.testing.assert_allclose(a, rows, **CLOSE)
    np.testing.assert_allclose(g, columns, **CLOSE)
    damp_a, damp_g = reference.pi_damping(np.diag(rows), columns, 0.1)
    direction = grads[name] / (rows + damp_a)[:, None] @ np.linalg.inv(columns + damp_g * np.eye(WIDTH))
    moved = net.embedding.embedding_table.asnumpy()
    np.testing.assert_allclose(moved, before - 0.05 * direction, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"loss_scale": 64.0}, {"accumulate": 2}, {"block_size": 2, "split": "block+rank", "rank": 1}]
)
def test_loss_scale_leaves_the_factors_and_accumulation_of_equal_batches_too(options):
    ids, target = words(outputs=VOCABULARY)
    found = []
    for extra in (options, {k: v for k, v in options.items() if k not in ("loss_scale", "accumulate")}):
        net = Tied()
        optimizer, step = make(net, loss_fn=per_example, **extra)
        for _ in range(extra.get("accumulate", 1)):
            step(ids, target)
        found.append((*optimizer.factors("embedding"), net.embedding.embedding_table.asnumpy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("path", ["native", "patches"])
@pytest.mark.parametrize("make_net", [Words, Tied, Images])
def test_the_network_keeps_names_values_types_and_outputs(make_net, path, mode, monkeypatch):
    monkeypatch.setenv("THOR_CONVOLUTION", path)
    net = make_net()
    net.set_train(False)
    x = pixels()[0] if make_net is Images else words()[0]
    names, types = [p.name for p in net.get_parameters()], {n: type(c) for n, c in net.cells_and_names()}
    before, output = values(net), net(x).asnumpy()
    thor.THOR(net, 0.1, 0.1, norms=True)
    assert [p.name for p in net.get_parameters()] == names
    assert all(isinstance(cell, types[name]) for name, cell in net.cells_and_names())
    # as patches the sums are taken in another order: the last digits of float32
    tolerance = 1e-5 if path == "patches" and make_net is Images else 0
    np.testing.assert_allclose(net(x).asnumpy(), output, rtol=tolerance, atol=tolerance)
    assert thor.detach(net) == len({id(c) for n, c in net.cells_and_names() if n and c._params})
    np.testing.assert_array_equal(net(x).asnumpy(), output)
    assert {n: type(c) for n, c in net.cells_and_names()} == types
    assert all(np.array_equal(v, before[n]) for n, v in values(net).items())
    assert not any(key.startswith("thor") for _, c in net.cells_and_names() for key in vars(c))


def test_graph_equals_pynative_with_every_kind_and_stops_and_resumes(tmp_path):
    ids, target = words()

    def built(jit):
        net = Words()
        rule = thor.TraceRule(update=0.05, stop=0.0)
        return net, *make(net, loss_fn=per_example, norms=True, refresh=rule, factor_decay=0.9, momentum=0.9, jit=jit)

    def run(step, count):
        return [float(step(ids, target).asnumpy()) for _ in range(count)]

    plain, compiled = built(False), built(True)
    np.testing.assert_allclose(run(plain[2], 6), run(compiled[2], 6), rtol=1e-4)
    for kind, cell in enumerate(compiled[:2]):
        ms.save_checkpoint(cell, str(tmp_path / f"{kind}.ckpt"))
    fresh = built(True)
    for kind, cell in enumerate(fresh[:2]):
        ms.load_param_into_net(cell, ms.load_checkpoint(str(tmp_path / f"{kind}.ckpt")))
    assert run(compiled[2], 4) == run(fresh[2], 4)


def test_a_stopped_embedding_and_norm_keep_their_inverses():
    net, (ids, target) = Words(), words()
    optimizer, step = make(net, loss_fn=per_example, norms=True, refresh=thor.TraceRule(update=1e6, stop=1e6))
    step(ids, target)
    kept = optimizer.inverses("embedding")[0], optimizer.inverses("norm.gamma")[1]
    for seed in range(2, 5):
        step(*words(seed=seed))
    assert {record.status for record in optimizer.layers} == {"stopped"}
    np.testing.assert_array_equal(optimizer.inverses("embedding")[0], kept[0])
    np.testing.assert_array_equal(optimizer.inverses("norm.gamma")[1], kept[1])


def test_what_takes_the_plain_gradient_is_listed_with_its_reason():
    net = Images()
    assert [item.reason for item in thor.THOR(net, 0.1, 0.1).left_out] == [
        "normalisation is not captured (norms=False)"
    ]
    thor.detach(net)
    net.norm.use_batch_statistics = False
    assert [item.reason for item in thor.THOR(net, 0.1, 0.1, norms=True).left_out] == [
        "normalises with moving statistics"
    ]
    layers, _ = find_targets(nn.SequentialCell(nn.LayerNorm((2, 3)), nn.Dense(3, 3)), norms=True)
    assert [target.kind for target in layers] == ["dense"]
    words_net = Words()
    words_net.embedding.embedding_table.requires_grad = False
    words_net.norm.beta.requires_grad = False
    found, left = find_targets(words_net, norms=True)
    assert [target.name for target in found] == ["norm.gamma", "dense"]
    assert [(item.name, item.reason) for item in left] == [("embedding", "frozen")]


@pytest.mark.parametrize(("skipped", "other"), [("embedding", "decoder"), ("decoder", "embedding")])
def test_a_tied_table_of_which_one_use_is_left_out_takes_the_plain_gradient(skipped, other):
    found, left = find_targets(Tied(), skip=[skipped])
    assert not found
    assert {item.name: item.reason for item in left} == {
        skipped: "matches skip", other: f"{skipped}, which is left out, has its weight too",
    }  # fmt: skip


def test_norms_must_be_true_or_false():
    with pytest.raises(TypeError, match="norms must be True or False, but got 1 of type int"):
        thor.THOR(Words(), 0.1, 0.1, norms=1)


@pytest.mark.parametrize("jit", [True, False])
def test_layers_may_be_called_with_their_inputs_named_as_before(jit):
    class Named(Words):
        def construct(self, ids):
            return self.dense(x=self.norm(input_x=self.embedding(ids=ids)))

    steps = []
    for net in (Named(), Words()):
        _, step = make(net, jit=jit, loss_fn=per_example, norms=True)
        steps.append([float(step(*words()).asnumpy()) for _ in range(3)])
    assert steps[0] == steps[1]
