"""A language model that predicts each next word: BERT's layers with a causal mask.

The encoder, the head, their names and the shapes are those of `models.bert`; only the mask differs.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from models.bert import MASKED, BertConfig, BertEmbeddings, BertEncoder, BertPredictionHead


class CausalLM(nn.Cell):
    """Token numbers to scores of the word after each token; a token attends to itself and to the tokens before it."""

    predicts_next = True  # tells the scripts that no token attends to later ones, which are its labels

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.predictions = BertPredictionHead(config, self.embeddings.word_embeddings)
        # The table was renamed when the decoder took it as its weight. This restores the embedding's name.
        self.embeddings.update_parameters_name("embeddings.")
        later = np.triu(np.full((config.max_positions, config.max_positions), MASKED, np.float32), 1)
        self._later = Tensor(later[None, None], ms.float32)

    def construct(self, input_ids: Tensor) -> Tensor:
        """Token numbers [B, T] to scores [B T, V]."""
        tokens = input_ids.shape[1]
        x = self.encoder(self.embeddings(input_ids), self._later[:, :, :tokens, :tokens])
        return self.predictions(x.reshape(-1, x.shape[-1]))


def causal_lm(**sizes: Any) -> CausalLM:
    """2 layers of width 128 with one kind of segment; `sizes` overrides fields of its BertConfig."""
    return CausalLM(BertConfig(**{"hidden_size": 128, "layers": 2, "heads": 2, "token_types": 1, **sizes}))
