import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.nn.utils import no_init_parameters
from scipy.special import erf, softmax

import models
import thor
from models.bert import BertConfig, BertEmbeddings, BertForMaskedLM, BertLayer, BertModel
from tests.support.networks import fill
from thor.runtime.modes import in_mode

SMALL = {"vocab_size": 50, "hidden_size": 8, "layers": 2, "heads": 2, "max_positions": 16}
IDS = np.random.default_rng(0).integers(5, 50, (3, 6)).astype(np.int32)


@pytest.fixture(autouse=True)
def graph_mode():
    """Compiled unless a test says otherwise, and the mode as it was for whoever comes next."""
    with in_mode(ms.GRAPH_MODE):
        yield


def _count(network):
    return sum(parameter.size for parameter in network.trainable_params())


def _values(network):
    return {parameter.name: parameter.asnumpy().astype(np.float64) for parameter in network.get_parameters()}


@pytest.mark.parametrize(
    "sizes, weights",
    [
        ({"hidden_size": 128, "layers": 2, "heads": 2}, 4_385_920),  # bert_uncased_L-2_H-128_A-2
        ({}, 109_482_240),  # bert-base-uncased
        ({"hidden_size": 1024, "layers": 24, "heads": 16}, 335_141_888),  # bert-large-uncased
    ],
)
def test_number_of_weights_with_pooler_is_the_published_one(sizes, weights):
    with no_init_parameters():
        assert _count(BertModel(BertConfig(**sizes))) == weights


@pytest.mark.parametrize(
    "factory, hidden, encoder",
    [
        (models.bert_tiny, 128, 4_385_920),
        (models.bert_base, 768, 109_482_240),
        (models.bert_large, 1024, 335_141_888),
    ],
)
def test_head_replaces_the_pooler_and_ties_its_decoder(factory, hidden, encoder):
    with no_init_parameters():
        network = factory()
    pooler, transform, norm, bias = hidden * (hidden + 1), hidden * (hidden + 1), 2 * hidden, 30522
    assert _count(network) == encoder - pooler + transform + norm + bias
    assert network.predictions.decoder.weight is network.bert.embeddings.word_embeddings.embedding_table


def test_names_are_those_of_published_checkpoints():
    with no_init_parameters():
        names = {parameter.name for parameter in models.bert_tiny(**SMALL, token_types=2).get_parameters()}
    layer = [f"attention.self.{part}.{leaf}" for part in ("query", "key", "value") for leaf in ("weight", "bias")]
    layer += ["attention.output.dense.weight", "attention.output.dense.bias", "attention.output.LayerNorm.gamma"]
    layer += ["attention.output.LayerNorm.beta", "intermediate.dense.weight", "intermediate.dense.bias"]
    layer += ["output.dense.weight", "output.dense.bias", "output.LayerNorm.gamma", "output.LayerNorm.beta"]
    expected = {f"bert.encoder.layer.{number}.{name}" for number in (0, 1) for name in layer}
    expected |= {f"bert.embeddings.{part}_embeddings.embedding_table" for part in ("word", "position", "token_type")}
    expected |= {f"bert.embeddings.LayerNorm.{leaf}" for leaf in ("gamma", "beta")}
    expected |= {f"predictions.{name}" for name in ("dense.weight", "dense.bias", "decoder.bias")}
    expected |= {f"predictions.LayerNorm.{leaf}" for leaf in ("gamma", "beta")}
    assert names == expected


def test_initial_weights_are_a_normal_distribution_cut_at_two_deviations():
    ms.set_seed(0)
    for name, value in _values(models.bert_tiny(vocab_size=2000)).items():
        if name.endswith(("bias", "beta")):
            assert not value.any()
        elif name.endswith("gamma"):
            assert (value == 1).all()
        elif value.size > 10_000:
            assert 0.039 < np.abs(value).max() <= 0.04, name
            assert value.std() == pytest.approx(0.02 * 0.8796, rel=0.02)  # of a normal distribution cut so


def _norm(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * gamma + beta


def _reference_layer(w, x, mask, heads):
    """One encoder layer in NumPy, head by head and example by example."""

    def dense(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        return _norm(x, w[f"{name}.gamma"], w[f"{name}.beta"])

    query, key, value = (dense(f"attention.self.{part}", x) for part in ("query", "key", "value"))
    size = x.shape[-1] // heads
    context = np.zeros_like(x)
    for example in range(len(x)):
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[example, :, part] @ key[example, :, part].T / np.sqrt(size)
            scores[:, mask[example] == 0] = -np.inf
            context[example, :, part] = softmax(scores, axis=-1) @ value[example, :, part]
    x = norm("attention.output.LayerNorm", x + dense("attention.output.dense", context))
    wide = dense("intermediate.dense", x)
    wide = wide * 0.5 * (1 + erf(wide / np.sqrt(2)))
    return norm("output.LayerNorm", x + dense("output.dense", wide))


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_a_layer_equals_its_numpy_reference(mode):
    ms.set_context(mode=mode)
    layer = fill(BertLayer(BertConfig(**SMALL)), 0).set_train(False)
    x = np.random.default_rng(1).normal(size=(3, 6, 8))
    mask = np.ones((3, 6))
    mask[0, 4:], mask[2, 1:3] = 0, 0
    bias = ms.Tensor(((1 - mask) * -1e4)[:, None, None, :].astype(np.float32))
    found = layer(ms.Tensor(x.astype(np.float32)), bias).asnumpy()
    np.testing.assert_allclose(found, _reference_layer(_values(layer), x, mask, heads=2), rtol=1e-4, atol=1e-5)


def test_the_whole_network_equals_its_numpy_reference():
    network = fill(BertForMaskedLM(BertConfig(**SMALL)), 0).set_train(False)
    w = _values(network)
    types = np.array([[0, 0, 0, 1, 1, 1]] * 3, np.int32)
    mask = np.array([[1] * 6, [1, 1, 1, 1, 0, 0], [1] * 6], np.int32)
    positions = np.array([[0, 3], [2, 1], [5, 5]], np.int32)

    table = w["bert.embeddings.word_embeddings.embedding_table"]
    x = table[IDS] + w["bert.embeddings.token_type_embeddings.embedding_table"][types]
    x = x + w["bert.embeddings.position_embeddings.embedding_table"][:6]
    x = _norm(x, w["bert.embeddings.LayerNorm.gamma"], w["bert.embeddings.LayerNorm.beta"])
    for number in (0, 1):
        prefix = f"bert.encoder.layer.{number}."
        layer = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
        x = _reference_layer(layer, x, mask, heads=2)
    x = np.take_along_axis(x, positions[:, :, None], axis=1).reshape(6, 8)
    x = x @ w["predictions.dense.weight"].T + w["predictions.dense.bias"]
    x = x * 0.5 * (1 + erf(x / np.sqrt(2)))
    x = _norm(x, w["predictions.LayerNorm.gamma"], w["predictions.LayerNorm.beta"])
    expected = x @ table.T + w["predictions.decoder.bias"]

    found = network(*map(ms.Tensor, (IDS, positions, mask, types))).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_padding_does_not_reach_the_other_tokens():
    network = fill(BertForMaskedLM(BertConfig(**SMALL)), 0).set_train(False)
    mask = np.array([[1, 1, 1, 1, 0, 0]] * 3, np.int32)
    changed = IDS.copy()
    changed[:, 4:] = 7
    outputs = [
        network(ms.Tensor(ids), None, ms.Tensor(mask)).asnumpy().reshape(3, 6, -1)[:, :4] for ids in (IDS, changed)
    ]
    np.testing.assert_array_equal(*outputs)
    unmasked = network(ms.Tensor(changed)).asnumpy().reshape(3, 6, -1)[:, :4]
    assert np.abs(unmasked - outputs[0]).max() > 1e-3


def test_gradient_of_the_tied_table_comes_from_both_ends():
    """The tied gradient is the sum of those of an untied pair."""
    network = fill(BertForMaskedLM(BertConfig(**SMALL, dropout=0.0)), 0)
    table = network.bert.embeddings.word_embeddings.embedding_table
    labels = ms.Tensor(IDS.reshape(-1))
    loss = nn.CrossEntropyLoss()

    def forward(ids):
        return loss(network(ids), labels)

    def gradient(weights):
        return ms.grad(forward, None, weights)(ms.Tensor(IDS))

    tied = gradient(ms.ParameterTuple([table]))[0].asnumpy()
    copy = ms.Parameter(table.asnumpy(), name="copy")
    network.predictions.decoder.weight = copy
    ends = gradient(ms.ParameterTuple([table, copy]))
    np.testing.assert_allclose(tied, ends[0].asnumpy() + ends[1].asnumpy(), rtol=1e-4, atol=1e-6)
    assert np.abs(ends[0].asnumpy()).max() > 1e-4 and np.abs(ends[1].asnumpy()).max() > 1e-4


def test_dropout_acts_in_training_alone():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = fill(BertModel(BertConfig(**SMALL, dropout=0.5), pooler=True), 0)
    ids = ms.Tensor(IDS)
    first, second = (network.set_train(True)(ids)[0].asnumpy() for _ in range(2))
    assert not np.array_equal(first, second)
    first, second = (network.set_train(False)(ids) for _ in range(2))
    np.testing.assert_array_equal(first[0].asnumpy(), second[0].asnumpy())
    assert first[0].shape == (3, 6, 8) and first[1].shape == (3, 8)


def test_mixed_precision_gives_nearly_the_same():
    network = BertForMaskedLM(BertConfig(**SMALL)).set_train(False)
    positions, mask = ms.Tensor([[0, 3]] * 3, ms.int32), ms.Tensor([[1, 1, 1, 1, 0, 0]] * 3, ms.int32)
    exact = network(ms.Tensor(IDS), positions, mask).asnumpy()
    network = ms.amp.auto_mixed_precision(network, "O3")
    found = network(ms.Tensor(IDS), positions, mask).asnumpy()
    assert not np.array_equal(found, exact)
    np.testing.assert_allclose(found, exact, atol=0.01 * np.abs(exact).max())


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"hidden_size": 10, "heads": 4}, "hidden_size must be a multiple of heads=4, but got 10"),
        ({"layers": 0}, "layers must be at least 1, and is 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), and is 1.0"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        BertConfig(**sizes)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_a_sequence_longer_than_its_positions_is_refused(mode):
    ms.set_context(mode=mode)
    network = BertModel(BertConfig(**SMALL))
    with pytest.raises(ValueError, match="more tokens than max_positions: give shorter sequences"):
        network(ms.Tensor(np.zeros((1, 17), np.int32)))


def test_every_token_is_an_example_of_the_position_table_too():
    """Where each token's number is its position, both tables see the same inputs and gradients: the same factors."""
    net = BertEmbeddings(BertConfig(**{**SMALL, "vocab_size": 16}, dropout=0.0))
    ids = ms.Tensor(np.tile(np.arange(6, dtype=np.int32), (3, 1)))
    target = ms.Tensor(np.random.default_rng(1).standard_normal((3, 6, 8)).astype(np.float32))
    optimizer = thor.THOR(net, 0.1, 0.1, refresh=thor.TraceRule.thor_nt(), interval=1)
    thor.TrainStep(net, nn.MSELoss(), optimizer)(ids, target)
    (word, words), (position, positions) = (optimizer.factors(f"{kind}_embeddings") for kind in ("word", "position"))
    np.testing.assert_allclose(position, word, rtol=1e-5)
    np.testing.assert_allclose(positions, words, rtol=1e-4, atol=1e-9)
    assert np.trace(words) > 0
