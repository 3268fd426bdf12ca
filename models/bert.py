"""BERT (Devlin et al., 2019): the encoder, its pooler, and the masked-language-model head, with the usual names.

The encoder's Parameters are named as in published checkpoints (`bert.encoder.layer.0.attention.self.query.weight`);
only the last part of a name is MindSpore's (gamma and beta, embedding_table). All layers with weights are nn.Dense,
nn.Embedding or nn.LayerNorm, except `TiedDecoder`.

Shapes: B examples, T tokens, H width of the encoder, N heads of width D = H / N, P predicted positions per example,
V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from models.small_normal import SMALL_NORMAL, small_dense

MASKED = -1e4  # added to masked scores: acts as -inf in softmax, and is within float16's range


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT; the defaults are those of BERT-base.

    Attributes:
        vocab_size: V, number of words in the vocabulary.
        hidden_size: H, a multiple of `heads`.
        layers: Number of encoder layers.
        heads: N, number of attention heads.
        intermediate_size: Width of the feed-forward part; 4 H if None.
        max_positions: Length of the longest sequence.
        token_types: Number of segment kinds.
        dropout: Dropout rate after embeddings and sublayers, and on attention weights.
        layer_norm_epsilon: Epsilon in the root of each LayerNorm.
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
            raise ValueError(f"hidden_size must be a multiple of heads={self.heads}, but got {self.hidden_size}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), and is {self.dropout}")

    @property
    def feed_forward(self) -> int:
        """Width of the feed-forward part."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size


class BertEmbeddings(nn.Cell):
    """Sum of word, position and token type embeddings, normalised."""

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
        # [B, T] rather than a [1, T] that broadcasts: THOR takes the rows of a layer's input as its examples
        positions = ops.broadcast_to(self._positions[:, : input_ids.shape[1]], input_ids.shape)
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(x + self.position_embeddings(positions)))


class BertSelfAttention(nn.Cell):
    """softmax(Q K^T / sqrt(D) + mask) V, head by head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.query = small_dense(config.hidden_size, config.hidden_size)
        self.key = small_dense(config.hidden_size, config.hidden_size)
        self.value = small_dense(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(p=config.dropout)
        self._heads = config.heads
        self._scale = 1.0 / sqrt(config.hidden_size // config.heads)
        self._products = ops.BatchMatMul(transpose_b=True)

    def construct(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, T, H] to [B, T, H]; `bias`, such as [B, 1, 1, T], broadcasts and is added to the scores [B, N, T, T]."""
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
    """The end of a sublayer: a dense layer, the sum with the sublayer's input, and normalisation."""

    def __init__(self, inputs: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = small_dense(inputs, config.hidden_size)
        self.LayerNorm = _norm(config)
        self.dropout = nn.Dropout(p=config.dropout)

    def construct(self, x: Tensor, residual: Tensor) -> Tensor:
        """norm(residual + dropout(dense(x)))."""
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
    """The first, widening layer of the feed-forward part."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = small_dense(config.hidden_size, config.feed_forward)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x: Tensor) -> Tensor:
        """gelu(dense(x))."""
        return self.gelu(self.dense(x))


class BertLayer(nn.Cell):
    """Attention, then the feed-forward part; each adds its input to its output and normalises the sum."""

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
    """The sequence of BertLayers."""

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
        self.dense = small_dense(config.hidden_size, config.hidden_size)
        self.tanh = nn.Tanh()

    def construct(self, x: Tensor) -> Tensor:
        """[B, T, H] to [B, H]."""
        return self.tanh(self.dense(x[:, 0]))


class BertModel(nn.Cell):
    """Token numbers [B, T] to one vector per token [B, T, H] and, with a pooler, one per sequence [B, H].

    Args:
        config: Sizes.
        pooler: Whether there is a pooler. Published weight counts include it; masked language modelling does not use
            it.
    """

    def __init__(self, config: BertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler: nn.Cell | None = BertPooler(config) if pooler else None
        self._masked = MASKED  # an attribute: mixed precision O1 rewrites `construct`, and loses this module's names

    def construct(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Any:
        """Token vectors [B, T, H]; with a pooler, (token vectors, sequence vectors [B, H]).

        attention_mask [B, T] is 1 for tokens and 0 for padding. No token attends to padding.
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

    `weight` is the same Parameter object as the embedding's table, so its gradient is the sum of both uses. Curvature
    capture finds the pair by this identity (`decoder.weight is embedding.embedding_table`). The decoder is a dense
    layer of H inputs and V outputs with a bias of its own.
    """

    thor_kind = "dense"  # tells THOR that `construct` computes a dense layer

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.embedding_table
        self.bias = Parameter(initializer("zeros", (self.weight.shape[0],), ms.float32), name="bias")
        self._product, self._add = ops.MatMul(transpose_b=True), ops.BiasAdd()  # avoids a transposition and a broadcast

    def construct(self, x: Tensor) -> Tensor:
        """Vectors [..., H] to scores [..., V]."""
        rows = self._product(x.reshape(-1, x.shape[-1]), self.weight.astype(x.dtype))
        return self._add(rows, self.bias.astype(x.dtype)).reshape(x.shape[:-1] + self.bias.shape)


class BertPredictionHead(nn.Cell):
    """The masked-language-model head: dense, gelu, normalisation, tied decoder."""

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.dense = small_dense(config.hidden_size, config.hidden_size)
        self.gelu = nn.GELU(approximate=False)
        self.LayerNorm = _norm(config)
        self.decoder = TiedDecoder(embedding)

    def construct(self, x: Tensor) -> Tensor:
        """Vectors [..., H] to scores [..., V]."""
        return self.decoder(self.LayerNorm(self.gelu(self.dense(x))))


class BertForMaskedLM(nn.Cell):
    """Token numbers to scores of words, at P given positions of each example or at all positions.

    Only the given positions go through the head, because its decoder is by far the widest layer.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.predictions = BertPredictionHead(config, self.bert.embeddings.word_embeddings)
        # The table was renamed when the decoder took it as its weight. This restores the embedding's name.
        self.bert.update_parameters_name("bert.")

    def construct(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Token numbers [B, T] and positions [B, P] to scores [B P, V]; without positions, to scores [B T, V]."""
        x = self.bert(input_ids, attention_mask, token_type_ids)
        batch, tokens, hidden = x.shape
        x = x.reshape(batch * tokens, hidden)
        if positions is not None:
            rows = positions + ops.arange(batch).astype(positions.dtype)[:, None] * tokens
            x = ops.gather(x, rows.reshape(-1), 0)
        return self.predictions(x)


def bert_tiny(**sizes: Any) -> BertForMaskedLM:
    """2 layers of width 128 (Turc et al., 2019); `sizes` overrides fields of its BertConfig."""
    return BertForMaskedLM(BertConfig(**{"hidden_size": 128, "layers": 2, "heads": 2, **sizes}))


def bert_base(**sizes: Any) -> BertForMaskedLM:
    """12 layers of width 768; `sizes` overrides fields of its BertConfig."""
    return BertForMaskedLM(BertConfig(**sizes))


def bert_large(**sizes: Any) -> BertForMaskedLM:
    """24 layers of width 1024; `sizes` overrides fields of its BertConfig."""
    return BertForMaskedLM(BertConfig(**{"hidden_size": 1024, "layers": 24, "heads": 16, **sizes}))


def _embedding(count: int, config: BertConfig) -> nn.Embedding:
    """An embedding of `count` vectors, initialised like a dense layer."""
    return nn.Embedding(count, config.hidden_size, embedding_table=SMALL_NORMAL)


def _norm(config: BertConfig) -> nn.LayerNorm:
    """LayerNorm over the width."""
    return nn.LayerNorm((config.hidden_size,), epsilon=config.layer_norm_epsilon)
