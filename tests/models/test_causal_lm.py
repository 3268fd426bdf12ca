import mindspore as ms
import numpy as np
import pytest

import models
from models.bert import BertConfig, BertForMaskedLM
from tests.support.networks import fill

SMALL = {"vocab_size": 50, "hidden_size": 8, "heads": 2, "max_positions": 16, "token_types": 1}
IDS = np.random.default_rng(0).integers(5, 50, (3, 7)).astype(np.int32)


pytestmark = pytest.mark.usefixtures("each_mode")


def test_no_token_sees_a_later_one():
    network = fill(models.causal_lm(**SMALL, layers=2), 0).set_train(False)
    changed = IDS.copy()
    changed[:, 4] = IDS[:, 4] % 45 + 5
    scores, others = (network(ms.Tensor(ids)).asnumpy().reshape(3, 7, 50) for ids in (IDS, changed))
    np.testing.assert_array_equal(scores[:, :4], others[:, :4])
    assert (np.abs(scores - others).max((0, 2))[4:] > 1e-3).all()  # the token itself and all later ones do


def test_a_layer_gives_a_token_what_bert_gives_the_last_one_of_its_prefix():
    """Of one layer only: in a second one, BERT's earlier tokens have seen the later ones already."""
    network = fill(models.causal_lm(**SMALL, layers=1), 0).set_train(False)
    bert = BertForMaskedLM(BertConfig(**SMALL, layers=1)).set_train(False)
    ours = {weight.name.removeprefix("bert."): weight for weight in bert.get_parameters()}
    assert ours.keys() == {weight.name for weight in network.get_parameters()}
    for weight in network.get_parameters():
        ours[weight.name].set_data(ms.Tensor(weight.asnumpy()))
    scores = network(ms.Tensor(IDS)).asnumpy().reshape(3, 7, 50)
    for tokens in (1, 4, 7):
        prefix = bert(ms.Tensor(IDS[:, :tokens])).asnumpy().reshape(3, tokens, 50)
        np.testing.assert_allclose(scores[:, tokens - 1], prefix[:, -1], rtol=1e-4, atol=1e-5)


def test_tiny_by_default_and_one_kind_of_segment():
    network = models.causal_lm(vocab_size=100)
    shapes = {weight.name: weight.shape for weight in network.trainable_params()}
    assert shapes["embeddings.word_embeddings.embedding_table"] == (100, 128)
    assert shapes["embeddings.token_type_embeddings.embedding_table"] == (1, 128)
    assert "encoder.layer.1.output.dense.weight" in shapes and "encoder.layer.2.output.dense.weight" not in shapes
    assert shapes["predictions.decoder.bias"] == (100,)
