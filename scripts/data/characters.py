"""A vocabulary of single characters, for text that is modelled character by character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models

from scripts.data.wordpiece import MAX_CHARACTERS, SPECIAL, Vocabulary


def vocabulary(texts: Sequence[str]) -> Vocabulary:
    """The characters of some texts, capitals and line breaks too, numbered in their order after the special tokens.

    Only the MAX_CHARACTERS most frequent ones are kept; the others become [UNK].
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    common = sorted(counts, key=lambda character: (-counts[character], character))[:MAX_CHARACTERS]
    numbers = {token: number for number, token in enumerate([*SPECIAL, *sorted(common)])}
    # byte pairs without a merge: single characters
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=numbers, merges=[], unk_token=SPECIAL[1]))
    tokenizer.decoder = decoders.Fuse()
    return Vocabulary(tokenizer)
