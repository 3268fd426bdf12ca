"""A word-piece vocabulary, as BERT's: built from text by the library `tokenizers`, and kept beside the data.

The file's name holds a checksum of the texts, so that another text, size or library version never meets an old
vocabulary.
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

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # their places are their numbers, 0 to 4
PAD, UNKNOWN, START, END, MASK = range(len(SPECIAL))
MIN_FREQUENCY = 2
SMALLEST = 100
MAX_CHARACTERS = 1000  # rarer ones become [UNK]


@dataclass(frozen=True)
class Vocabulary:
    """Words and pieces of words, numbered."""

    tokenizer: tokenizers.Tokenizer

    def __len__(self) -> int:
        """How many numbers there are: what a network's vocab_size must be at least."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> NDArray[np.int32]:
        """The numbers of a text's pieces, without marks at its ends."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def text(self) -> str:
        """What a file of it holds."""
        return str(self.tokenizer.to_str())

    def decode(self, tokens: Sequence[int]) -> str:
        """Text again, for people: lower case, blanks as the pieces tell."""
        return str(self.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))


def vocabulary(texts: Sequence[str], size: int, cache: Path) -> Vocabulary:
    """The vocabulary of some texts: out of the cache, or built and put there.

    Args:
        texts: What it is built from; words that occur once become pieces.
        size: Numbers at most; a small text gives fewer.
        cache: Folder for the vocabulary's file.
    """
    if size < SMALLEST:
        raise UserError(f"vocabulary size must be at least {SMALLEST}, and is {size}")
    path = cache / f"wordpiece-{size}-{_checksum(texts)}.json"
    if not path.is_file():
        _build(texts, size, path)
    return read(path, "delete it, and it is built anew")


def read(path: Path, advice: str) -> Vocabulary:
    """The vocabulary in a file; where it holds none, the error ends with the advice."""
    try:
        return Vocabulary(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: not a vocabulary ({error}); {advice}") from None


def _build(texts: Sequence[str], size: int, path: Path) -> None:
    """Build a vocabulary, and write its file."""
    builder = BertWordPieceTokenizer(lowercase=True)
    starts, continuations = _characters(texts, builder)
    # The library numbers continuations in the order of a hash table, another one in every process, and breaks ties by
    # these numbers. Numbered here, as if they were special, they make the result the same for the same texts.
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
    """The commonest characters, as the normaliser leaves them, and those that can go on within a word as ##c."""
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
    """Sixteen letters that tell one collection of texts from another, and this way of building from others."""
    digest = hashlib.sha256(f"{tokenizers.__version__} {MIN_FREQUENCY} {SPECIAL}".encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:16]
