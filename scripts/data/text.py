"""Plain text for language modelling: fixed sequences of word pieces, for masked or causal prediction.

A sequence is [CLS], `length - 2` consecutive pieces of one document, [SEP].

`MaskedText` selects 15 % of the pieces for prediction, the same number in every sequence, so that all batches have one
shape. Of these, 80 % are replaced by [MASK], 10 % by a random piece, and 10 % are kept (Devlin et al., 2019, appendix
A.1). In `NextPieces`, each piece is predicted from the pieces before it, the first one from [CLS].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.data.source import IGNORED, MASKING, PADDING, Order, generator
from scripts.data.wordpiece import END, MASK, SPECIAL, START, Vocabulary
from thor.runtime.errors import UserError

PREDICTED = 0.15  # share of the pieces that are predicted
HIDDEN, REPLACED = 0.8, 0.1  # shares of the predicted pieces that become [MASK], or a random piece
HELD_OUT = 20  # without a held-out document, the last 1 / HELD_OUT of each document is held out

MaskedBatch = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
NextBatch = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Base of sources that cut sequences of tokens into batches.

    Attributes:
        sequences: Token numbers [count, T], as `sequences` makes them.
        words: Size of the vocabulary.
        batch_size: Sequences per batch of this rank.
        seed: Determines the order and the masked tokens, together with the epoch.
        rank: The part of each global batch that this source yields; see `Order`.
        ranks: Parts of a global batch.
        training: False for evaluation: stored order, and the last batch is padded with the label IGNORED.
    """

    sequences: NDArray[np.int32]
    words: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    training: bool = True

    def __post_init__(self) -> None:
        if len(self.sequences) and self.sequences.max() >= self.words:
            raise UserError(f"words must be above {self.sequences.max()}, the largest token, and is {self.words}")

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._order)

    @property
    def _order(self) -> Order:
        return Order(
            count=len(self.sequences),
            batch_size=self.batch_size,
            seed=self.seed,
            rank=self.rank,
            ranks=self.ranks,
            training=self.training,
        )


class NextPieces(TextSource):
    """Causal prediction. A batch is token numbers [B, T - 2], [CLS] and all pieces but the last; labels [B (T - 2)].

    The labels are all pieces. [SEP] is neither an input nor a label: since it always comes last, it is trivial.
    """

    def epoch(self, epoch: int, start: int = 0) -> Iterator[NextBatch]:
        """Yield the batches of an epoch from number `start` on: token numbers, labels."""
        for chosen in self._order.batches(epoch, start):
            real = (chosen != PADDING)[:, None]
            sequences = self.sequences[np.where(chosen == PADDING, 0, chosen)]
            tokens = np.where(real, sequences[:, :-2], 0).astype(np.int32)
            yield tokens, np.where(real, sequences[:, 1:-1], IGNORED).astype(np.int32).reshape(-1)


def masked_tokens(tokens: int) -> int:
    """Number of predicted tokens of a sequence, [CLS] and [SEP] among its tokens."""
    return max(1, round(PREDICTED * (tokens - 2)))


class MaskedText(TextSource):
    """Masked prediction. A batch is token numbers [B, T], positions [B, P] of the predicted tokens, labels [B P].

    The positions in a sequence depend only on the seed, the epoch and the sequence's index. In evaluation they do not
    depend on the epoch, so that every evaluation predicts the same tokens.
    """

    @property
    def predictions(self) -> int:
        """P: number of predicted tokens per sequence."""
        return masked_tokens(self.sequences.shape[1])

    def epoch(self, epoch: int, start: int = 0) -> Iterator[MaskedBatch]:
        """Yield the batches of an epoch from number `start` on: token numbers, positions, labels."""
        for chosen in self._order.batches(epoch, start):
            examples = [self._example(epoch if self.training else 0, int(index)) for index in chosen]
            tokens, positions, labels = (np.stack(parts) for parts in zip(*examples, strict=True))
            yield tokens, positions, labels.reshape(-1)

    def _example(self, epoch: int, index: int) -> MaskedBatch:
        """A sequence after masking [T], the ascending positions of its predicted tokens [P], and their labels [P]."""
        length, count = self.sequences.shape[1], self.predictions
        if index == PADDING:
            return np.zeros(length, np.int32), np.arange(count, dtype=np.int32), np.full(count, IGNORED, np.int32)
        random = generator(self.seed, epoch, MASKING, index)
        tokens = self.sequences[index].copy()
        positions = np.sort(random.choice(length - 2, count, replace=False) + 1).astype(np.int32)
        labels = tokens[positions]
        lot = random.random(count)
        others = random.integers(len(SPECIAL), self.words, count).astype(np.int32)
        shown = np.where(lot < HIDDEN, MASK, np.where(lot < HIDDEN + REPLACED, others, labels))
        tokens[positions] = shown
        return tokens, positions, labels


def read(path: Path) -> dict[str, str]:
    """Read a plain text file, or every NAME.txt in a folder: the text of each document by its name without .txt."""
    if path.is_dir():
        files = sorted(file for file in path.glob("*.txt") if not file.name.startswith("."))  # ._NAME.txt of macOS
        if not files:
            raise UserError(f"{path}: holds no NAME.txt")
    else:
        files = [path]
    return {file.stem: _read(file) for file in files}


def split(documents: Mapping[str, str], held_out: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Split documents into those for training and those for evaluation.

    Args:
        documents: Name and text of each document.
        held_out: The document for evaluation; without it, the last 1 / HELD_OUT of each document.
    """
    if held_out is not None:
        if held_out not in documents:
            raise UserError(
                f"held_out = {held_out!r}: must be one of {', '.join(documents)}; "
                "or --data.held_out null holds out the end of each"
            )
        if len(documents) == 1:
            raise UserError(
                f"held_out = {held_out!r}: is the only document, and nothing would be left to train on; "
                "--data.held_out null holds out its end"
            )
        train = {name: text for name, text in documents.items() if name != held_out}
        return train, {held_out: documents[held_out]}
    cuts = {name: len(text) - len(text) // HELD_OUT for name, text in documents.items()}
    train = {name: text[: cuts[name]] for name, text in documents.items()}
    return train, {name: text[cuts[name] :] for name, text in documents.items()}


def sequences(documents: Mapping[str, str], vocabulary: Vocabulary, length: int) -> NDArray[np.int32]:
    """Encode documents as token numbers [count, length]; the remainder at the end of each document is dropped."""
    if length < 8:
        raise UserError(f"length must be at least 8 tokens, and is {length}")
    parts = []
    for text in documents.values():
        tokens = vocabulary.encode(text)
        whole = len(tokens) // (length - 2)
        inside = tokens[: whole * (length - 2)].reshape(whole, length - 2)
        parts.append(np.pad(inside, ((0, 0), (1, 1)), constant_values=((0, 0), (START, END))))
    result = np.concatenate(parts)
    if len(result) == 0:
        raise UserError(f"{', '.join(documents)}: too short for one sequence of {length} tokens")
    return result


def _read(path: Path) -> str:
    """Read the text of a file; errors name the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); convert it, for instance with iconv") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise UserError(f"{path}: holds no text")
    return text
