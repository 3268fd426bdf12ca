"""A captured nn.MultiheadAttention returns what MindSpore's own returns, and networks of nn.Transformer* train."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import thor
from tests.support.compilations import count_compilations
from tests.support.networks import make

B, L, S, E, HEADS = 3, 4, 5, 8, 2
RNG = np.random.default_rng(0)


def normal(*shape):
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


def attention(**options):
    """One with weights far from a small start."""
    cell = nn.MultiheadAttention(E, HEADS, **options)
    for parameter in cell.get_parameters():
        parameter.set_data(0.5 * normal(*parameter.shape))
    return cell


def batch(batch_first, width=E):
    shapes = ((L, E), (S, width), (S, width))
    return tuple(normal(*((B, n, d) if batch_first else (n, B, d))) for n, d in shapes)


#: No query has all of its keys masked: its weights would be undefined.
FAR, TAIL = np.triu(np.ones((L, S)), 3), np.array([[0, 0, 0, 1, 0], [0] * 5, [0, 0, 1, 0, 0]])
OF_PAIRS = [None, Tensor(FAR.astype(bool)), Tensor(FAR.astype(np.uint8)), normal(L, S), normal(B * HEADS, L, S)]
OF_KEYS = [None, Tensor(TAIL.astype(bool)), Tensor((-2 * TAIL).astype(np.float32))]
MASKS = list(itertools.product(OF_PAIRS, OF_KEYS))


def results(cell, inputs, jit=False, **options):
    """All outputs, and the gradients of inputs and weights."""

    def forward(query, key, value):
        found = cell(query, key, value, **options)
        return (found[0] ** 2).sum() + (found[-1] ** 3).sum(), found

    differentiate = ms.value_and_grad(forward, (0, 1, 2), cell.trainable_params(), has_aux=True)
    (_, found), (of_inputs, of_weights) = (ms.jit(differentiate) if jit else differentiate)(*inputs)
    return [each.asnumpy() for each in (*found, *of_inputs, *of_weights)]


def same_when_captured(cell, inputs, **options):
    before = results(cell, inputs, **options)
    thor.THOR(cell, 0.1, 0.1)
    now = results(cell, inputs, **options)
    assert thor.detach(cell) == 1 and type(cell) is nn.MultiheadAttention
    assert len(now) == len(before)
    for one, other in zip(now, before, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(
    ("options", "masks"),
    [({}, MASKS), ({"batch_first": True, "kdim": 6, "vdim": 6}, MASKS[::4]), ({"has_bias": False}, MASKS[1::7])],
    ids=["all masks", "weights of their own", "no bias"],
)
def test_outputs_and_gradients_are_those_of_mindspore_with_any_mask(options, masks):
    cell = attention(**options)
    for pairs, keys in masks:
        inputs = batch(cell.batch_first, options.get("kdim", E))
        same_when_captured(cell, inputs, attn_mask=pairs, key_padding_mask=keys, average_attn_weights=keys is None)


@pytest.mark.parametrize("masks", MASKS[3:9:2], ids=["bool", "bool and float", "uint8 and bool"])
def test_outputs_and_gradients_are_those_of_mindspore_in_a_graph(masks):
    same_when_captured(attention(), batch(False), jit=True, attn_mask=masks[0], key_padding_mask=masks[1])


@pytest.mark.parametrize("batch_first", [True, False])
def test_inputs_without_an_axis_of_examples(batch_first):
    cell, inputs = attention(batch_first=batch_first), (normal(L, E), normal(S, E), normal(S, E))
    masks = {"attn_mask": normal(HEADS, L, S), "key_padding_mask": Tensor(np.array([0, 0, 1, 0, 0], bool))}
    for average in (True, False):
        same_when_captured(cell, inputs, average_attn_weights=average, **masks)


def test_weights_that_are_not_needed_are_not_returned():
    cell, inputs = attention(), batch(False)
    thor.THOR(cell, 0.1, 0.1)
    assert [len(cell(*inputs, need_weights=needed)) for needed in (True, False)] == [2, 1]


def test_a_mask_that_does_not_fit_is_refused():
    cell, inputs = attention(), batch(False)
    thor.THOR(cell, 0.1, 0.1)
    with pytest.raises(ValueError, match=r"attn_mask must be \(4, 5\) or \(6, 4, 5\), got \(5, 4\)"):
        cell(*inputs, attn_mask=normal(S, L))
    with pytest.raises(ValueError, match=r"key_padding_mask must be \(3, 5\), but got \(3, 4\)"):
        cell(*inputs, key_padding_mask=normal(B, L))
    with pytest.raises(ValueError, match="attn_mask must be of a float type, bool or uint8, but got Int32"):
        cell(*inputs, attn_mask=Tensor(np.zeros((L, S), np.int32)))
    with pytest.raises(ValueError, match="key_padding_mask must be of a float type or bool, but got Int32"):
        cell(*inputs, key_padding_mask=Tensor(np.zeros((B, S), np.int32)))


def test_dropout_drops_in_training_alone_and_anew_at_every_call():
    cell, inputs = attention(dropout=0.25), batch(False)
    thor.THOR(cell, 0.1, 0.1)
    whole = cell(*inputs, average_attn_weights=False)[1].asnumpy()
    cell.set_train()
    drawn = np.array([cell(*inputs, average_attn_weights=False)[1].asnumpy() for _ in range(40)])
    np.testing.assert_allclose(drawn[drawn > 0], np.broadcast_to(whole / 0.75, drawn.shape)[drawn > 0], rtol=1e-4)
    assert 0.2 < (drawn == 0).mean() < 0.3 and not np.array_equal(drawn[0], drawn[1])
    cell.set_train(False)
    np.testing.assert_array_equal(cell(*inputs, average_attn_weights=False)[1].asnumpy(), whole)


class Classifier(nn.Cell):
    """An encoder of nn over inputs [B, T, E], the mean over tokens, a dense layer."""

    def __init__(self, dropout=0.0, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(E, HEADS, 12, dropout=dropout, batch_first=True, **options)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Dense(E, 3)
        rng = np.random.default_rng(0)
        for parameter in self.get_parameters():
            value = 0.3 * rng.standard_normal(parameter.shape) + parameter.name.endswith("gamma")
            parameter.set_data(Tensor(value.astype(np.float32)))

    def construct(self, x, padding):
        return self.head(self.encoder(x, src_key_padding_mask=padding).mean(1))


def classes():
    """Sequences whose class is that of their first tokens' mean."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 24).astype(np.int32)
    x = rng.standard_normal((24, 5, E)) + 2 * np.eye(3, E)[labels][:, None] * (np.arange(5) < 2)[:, None]
    return Tensor(x.astype(np.float32)), Tensor(np.tile(np.arange(5) == 4, (24, 1))), Tensor(labels)


MATRICES = [f"encoder.layers.{at}.{part}" for at in range(2) for part in
            ("self_attn.in_proj", "self_attn.out_proj", "dense1", "dense2")] + ["head"]  # fmt: skip


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"], indirect=True)
def test_an_encoder_of_nn_trains_with_all_of_its_matrices_captured(mode):
    net = Classifier(dropout=0.05, norm_first=True)
    net.set_train()
    options = {"jit": mode == "GRAPH_MODE", "interval": 2, "norms": True}
    optimizer, step = make(net, loss_fn=nn.CrossEntropyLoss(), **options)
    assert [layer.name for layer in optimizer.layers if layer.kind == "dense"] == MATRICES
    losses = [float(step(*classes()).asnumpy()) for _ in range(12)]
    assert not optimizer.left_out and all(layer.refreshes >= 1 for layer in optimizer.layers)
    assert np.mean(losses[-3:]) < 0.5 * losses[0]
    assert thor.detach(net) == 2 * (1 + 2 + 2) + 1


def test_half_precision_computes_as_mindspores_and_has_the_factors_of_float32():
    found = []
    for half in (False, True):
        net = Classifier()
        if half:
            net.to_float(ms.float16)
            own = net(*classes()[:2]).asnumpy()
        optimizer, step = make(net, loss_fn=in_float32, jit=half, lr=0.0, loss_scale=64.0 if half else 1.0)
        if half:
            now = net(*classes()[:2]).asnumpy()
            assert now.dtype == own.dtype == np.float16
            np.testing.assert_allclose(now, own, rtol=1e-2, atol=1e-2)
        step(*classes())
        found.append({name: optimizer.factors(name) for name in MATRICES})
    for name in MATRICES:
        for one, other in zip(*(each[name] for each in found), strict=True):
            assert other.dtype == np.float32
            np.testing.assert_allclose(other, one, atol=3e-2 * np.abs(one).max(), err_msg=name)


def in_float32(output, labels):
    return ops.cross_entropy(output.astype(ms.float32), labels)


def test_a_call_outside_of_the_step_compiles_nothing_anew(monkeypatch):
    """MindSpore notes at each such call whether keys are values, for its own construct alone."""
    net = Classifier()
    _, step = make(net, loss_fn=nn.CrossEntropyLoss(), jit=True)
    step(*classes())
    step(*classes())
    count = count_compilations(monkeypatch)
    net(*classes()[:2])
    net.encoder.layers[0].self_attn(*batch(True))
    step(*classes())
    assert count() == 0
