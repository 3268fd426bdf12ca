"""A word-piece vocabulary like BERT's, built from text by the library `tokenizers`, and cached in a file.

The file's name holds the size and a checksum of the texts and the library's version, so that a change of any of them
builds a new vocabulary.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.implementations import BertWordPieceTokenizer

from scripts.common.atomic_write import write_atomically
from thor.runtime.errors import UserError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # tokens 0 to 4
PAD, UNKNOWN, START, END, MASK = range(len(SPECIAL))
MIN_FREQUENCY = 2
SMALLEST = 100
MAX_CHARACTERS = 1000  # distinct characters that are kept; rarer ones become [UNK]


@dataclass(frozen=True)
class Vocabulary:
    """Words and pieces of words, numbered."""

    tokenizer: tokenizers.Tokenizer

    def __len__(self) -> int:
        """Number of tokens: the least vocab_size of a network."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> NDArray[np.int32]:
        """The token numbers of a text, without [CLS] and [SEP]."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def text(self) -> str:
        """The content of a vocabulary file."""
        return str(self.tokenizer.to_str())

    def decode(self, tokens: Sequence[int]) -> str:
        """Readable text of token numbers, in lower case; blanks follow from the pieces."""
        return str(self.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))


def vocabulary(texts: Sequence[str], size: int, cache: Path) -> Vocabulary:
    """Return the vocabulary of some texts, from the cache, or built and written there.

    Args:
        texts: The texts that it is built from; words that occur once are split into pieces.
        size: Largest number of tokens; a small text gives fewer.
        cache: Folder of the vocabulary's file.
    """
    if size < SMALLEST:
        raise UserError(f"vocabulary size must be at least {SMALLEST}, and is {size}")
    path = cache / f"wordpiece-{size}-{_checksum(texts)}.json"
    if not path.is_file():
        _build(texts, size, path)
    return read(path, "delete it, and it is built anew")


def read(path: Path, advice: str) -> Vocabulary:
    """Read the vocabulary in a file; if that fails, the error ends with the advice."""
    try:
        return Vocabulary(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: not a vocabulary ({error}); {advice}") from None


def _build(texts: Sequence[str], size: int, path: Path) -> None:
    """Build a vocabulary, and write its file."""
    builder = BertWordPieceTokenizer(lowercase=True)
    starts, continuations = _characters(texts, builder)
    # The library numbers continuations (##c) in the order of a hash table, which differs between processes, and breaks
    # ties by these numbers. As special tokens they have fixed numbers, so the same texts give the same vocabulary.
    builder.train_from_iterator(
        iter(texts),
        vocab_size=size,
        min_frequency=MIN_FREQUENCY,
        limit_alphabet=len(starts),
        initial_alphabet=starts,
        special_tokens=[*SPECIAL, *continuations],
        show_progress=False,
    )
    finished = BertWordPieceTokenizer(vocab=builder.get_vocab(with_added_tokens=False), lowercase=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, finished.to_str())
    except OSError as error:
        raise UserError(f"{path}: the vocabulary cannot be written ({error.strerror})") from None


def _characters(texts: Sequence[str], builder: BertWordPieceTokenizer) -> tuple[list[str], list[str]]:
    """The most frequent characters after normalisation, and the ##c of those that can continue a word."""
    counts: Counter[str] = Counter()
    for text in texts:
        for character, count in Counter(text).items():
            for normal in builder.normalizer.normalize_str(character):
                counts[normal] += count
    common = sorted(counts, key=lambda character: (-counts[character], character))[:MAX_CHARACTERS]
    starts = sorted(character for character in common if not character.isspace())
    within = [c for c in starts if len(builder.pre_tokenizer.pre_tokenize_str(f"a{c}")) == 1]
    return starts, [f"##{c}" for c in within]


def _checksum(texts: Sequence[str]) -> str:
    """Sixteen hexadecimal digits of a hash over the texts and everything else that determines the vocabulary."""
    digest = hashlib.sha256(f"{tokenizers.__version__} {MIN_FREQUENCY} {MAX_CHARACTERS} {SPECIAL}".encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:16]
