"""BERT (Devlin et al., 2019): the encoder, its pooler, and the masked-language-model head, with the usual names.

The encoder's names are those of published checkpoints (`bert.encoder.layer.0.attention.self.query.weight`), but for
MindSpore's own leaves (gamma and beta, embedding_table). Everything is a plain nn.Dense, nn.Embedding or nn.LayerNorm;
the one exception is `TiedDecoder`.

Shapes: B examples, T tokens, H width of the encoder, N heads of D = H / N, P predicted positions an example, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import TruncatedNormal, initializer

# A normal distribution of deviation 0.02, cut at two deviations; MindSpore takes the bounds as values.
_INIT = TruncatedNormal(0.02, mean=0.0, a=-0.04, b=0.04)

MASKED = -1e4  # what a masked score loses: as good as -inf after softmax, and within float16's range


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The sizes of a BERT; those of `base` unless given.

    Attributes:
        vocab_size: V, words of the vocabulary.
        hidden_size: H, a multiple of `heads`.
        layers: Layers of the encoder.
        heads: N, heads of attention.
        intermediate_size: Width of the feed-forward part; 4 H unless given.
        max_positions: The longest sequence.
        token_types: Kinds of segments.
        dropout: Rate after embeddings and sublayers, and on attention.
        layer_norm_epsilon: Under the root of each LayerNorm.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    intermediate_size: int | None = None
    max_positions: int = 512
    token_types: int = 2
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-12

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "layers", "heads", "max_positions", "token_types", "feed_forward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, and is {getattr(self, name)}")
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads, and {self.hidden_size} is none of {self.heads}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), and is {self.dropout}")

    @property
    def feed_forward(self) -> int:
        """Width of the feed-forward part."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size


class BertEmbeddings(nn.Cell):
    """Word + position + token type, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = _embedding(config.vocab_size, config)
        self.position_embeddings = _embedding(config.max_positions, config)
        self.token_type_embeddings = _embedding(config.token_types, config)
        self.LayerNorm = _norm(config)
        self.dropout = nn.Dropout(p=config.dropout)
        self._positions = Tensor(np.arange(config.max_positions)[None], ms.int32)

    def construct(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Token numbers [B, T] to vectors [B, T, H]."""
        if token_type_ids is None:
            token_type_ids = ops.zeros_like(input_ids)
        if input_ids.shape[1] > self._positions.shape[1]:
            raise ValueError("more tokens than max_positions: give shorter sequences, or the network more positions")
        # one row for each token, not one for all examples: THOR takes what a layer is called on for its examples
        positions = ops.broadcast_to(self._positions[:, : input_ids.shape[1]], input_ids.shape)
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(x + self.position_embeddings(positions)))


class BertSelfAttention(nn.Cell):
    """softmax(Q K^T / sqrt(D) + mask) V, head by head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.query = _dense(config.hidden_size, config.hidden_size)
        self.key = _dense(config.hidden_size, config.hidden_size)
        self.value = _dense(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(p=config.dropout)
        self._heads = config.heads
        self._scale = 1.0 / sqrt(config.hidden_size // config.heads)
        self._products = ops.BatchMatMul(transpose_b=True)

    def construct(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Vectors [B, T, H], and what is added to scores ([B, 1, 1, T], or any that broadcasts), to [B, T, H]."""
        query, key, value = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        scores = self._products(query, key) * self._scale
        if bias is not None:
            scores = scores + bias.astype(scores.dtype)
        context = ops.matmul(self.dropout(ops.softmax(scores, -1)), value)
        return context.swapaxes(1, 2).reshape(x.shape)

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, H] to [B, N, T, D]."""
        batch, tokens, hidden = x.shape
        return x.reshape(batch, tokens, self._heads, hidden // self._heads).swapaxes(1, 2)


class BertResidual(nn.Cell):
    """A dense layer whose output is added to the input of its sublayer, then normalised."""

    def __init__(self, inputs: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = _dense(inputs, config.hidden_size)
        self.LayerNorm = _norm(config)
        self.dropout = nn.Dropout(p=config.dropout)

    def construct(self, x: Tensor, residual: Tensor) -> Tensor:
        """norm(residual + dense(x))."""
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class BertAttention(nn.Cell):
    """Self-attention and its output projection."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertResidual(config.hidden_size, config)

    def construct(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, H] to [B, T, H]."""
        return self.output(self.self(x, bias), x)


class BertIntermediate(nn.Cell):
    """The wide half of the feed-forward part."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = _dense(config.hidden_size, config.feed_forward)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x: Tensor) -> Tensor:
        """gelu(dense(x))."""
        return self.gelu(self.dense(x))


class BertLayer(nn.Cell):
    """Attention, then the feed-forward part; each adds to its input and normalises the sum."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidual(config.feed_forward, config)

    def construct(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, H] to [B, T, H]."""
        x = self.attention(x, bias)
        return self.output(self.intermediate(x), x)


class BertEncoder(nn.Cell):
    """Layers one after the other."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.CellList([BertLayer(config) for _ in range(config.layers)])

    def construct(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, H] to [B, T, H]."""
        for layer in self.layer:
            x = layer(x, bias)
        return x


class BertPooler(nn.Cell):
    """A vector for the whole sequence: tanh(dense(first token))."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = _dense(config.hidden_size, config.hidden_size)
        self.tanh = nn.Tanh()

    def construct(self, x: Tensor) -> Tensor:
        """[B, T, H] to [B, H]."""
        return self.tanh(self.dense(x[:, 0]))


class BertModel(nn.Cell):
    """Token numbers [B, T] to a vector for each token [B, T, H] and, with a pooler, one for the sequence [B, H].

    Args:
        config: Sizes.
        pooler: Whether there is one; published weight counts include it, and masked language modelling has no use
            for it.
    """

    def __init__(self, config: BertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler: nn.Cell | None = BertPooler(config) if pooler else None
        self._masked = MASKED  # mixed precision O1 rewrites `construct`, and loses the names of this module

    def construct(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Any:
        """Vectors of tokens, or (vectors of tokens, vector of the sequence) with a pooler.

        attention_mask [B, T] is 1 for tokens and 0 for padding, which no token then attends to.
        """
        bias = None
        if attention_mask is not None:
            bias = ((1.0 - attention_mask.astype(ms.float32)) * self._masked)[:, None, None, :]
        x = self.encoder(self.embeddings(input_ids, token_type_ids), bias)
        if self.pooler is None:
            return x
        return x, self.pooler(x)


class TiedDecoder(nn.Cell):
    """Scores of all words: x W^T + bias, where W [V, H] is the table of an nn.Embedding.

    `weight` *is* the embedding's Parameter, the same object, so that a gradient reaches it from both ends. Whoever
    captures curvature finds the pair by that identity (`decoder.weight is embedding.embedding_table`): it is a dense
    layer of H inputs and V outputs whose bias is its own.
    """

    thor_kind = "dense"  # by which THOR knows what `construct` computes

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.embedding_table
        self.bias = Parameter(initializer("zeros", (self.weight.shape[0],), ms.float32), name="bias")
        self._product, self._add = ops.MatMul(transpose_b=True), ops.BiasAdd()  # no transposition, no broadcasting

    def construct(self, x: Tensor) -> Tensor:
        """Vectors [..., H] to scores [..., V]."""
        rows = self._product(x.reshape(-1, x.shape[-1]), self.weight.astype(x.dtype))
        return self._add(rows, self.bias.astype(x.dtype)).reshape(x.shape[:-1] + self.bias.shape)


class BertPredictionHead(nn.Cell):
    """The masked-language-model head: dense, gelu, normalisation, then the tied decoder."""

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.dense = _dense(config.hidden_size, config.hidden_size)
        self.gelu = nn.GELU(approximate=False)
        self.LayerNorm = _norm(config)
        self.decoder = TiedDecoder(embedding)

    def construct(self, x: Tensor) -> Tensor:
        """Vectors [..., H] to scores [..., V]."""
        return self.decoder(self.LayerNorm(self.gelu(self.dense(x))))


class BertForMaskedLM(nn.Cell):
    """Token numbers to scores of words: at P given positions of each example, or at all of them.

    Only the given positions go through the head, whose decoder is by far the widest layer.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.predictions = BertPredictionHead(config, self.bert.embeddings.word_embeddings)
        # Holding the table twice has given it the decoder's name. It gets the embedding's back.
        self.bert.update_parameters_name("bert.")

    def construct(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """[B, T] and positions [B, P] to scores [B P, V]; without positions [B T, V]."""
        x = self.bert(input_ids, attention_mask, token_type_ids)
        batch, tokens, hidden = x.shape
        x = x.reshape(batch * tokens, hidden)
        if positions is not None:
            rows = positions + ops.arange(batch).astype(positions.dtype)[:, None] * tokens
            x = ops.gather(x, rows.reshape(-1), 0)
        return self.predictions(x)


def bert_tiny(**sizes: Any) -> BertForMaskedLM:
    """2 layers of width 128 (Turc et al., 2019); any field of BertConfig can be given instead."""
    return BertForMaskedLM(BertConfig(**{"hidden_size": 128, "layers": 2, "heads": 2, **sizes}))


def bert_base(**sizes: Any) -> BertForMaskedLM:
    """12 layers of width 768; any field of BertConfig can be given instead."""
    return BertForMaskedLM(BertConfig(**sizes))


def bert_large(**sizes: Any) -> BertForMaskedLM:
    """24 layers of width 1024; any field of BertConfig can be given instead."""
    return BertForMaskedLM(BertConfig(**{"hidden_size": 1024, "layers": 24, "heads": 16, **sizes}))


def _dense(inputs: int, outputs: int) -> nn.Dense:
    """A dense layer with BERT's initial weights, and zero bias."""
    return nn.Dense(inputs, outputs, weight_init=_INIT, bias_init="zeros")


def _embedding(count: int, config: BertConfig) -> nn.Embedding:
    """A table of `count` vectors, started like a dense layer."""
    return nn.Embedding(count, config.hidden_size, embedding_table=_INIT)


def _norm(config: BertConfig) -> nn.LayerNorm:
    """LayerNorm over the width."""
    return nn.LayerNorm((config.hidden_size,), epsilon=config.layer_norm_epsilon)
