"""Settings of the data set of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scripts.settings.types import Count, Settings

IN_MEMORY = ("fashion_mnist", "cifar10", "cifar100")
PHOTOGRAPHS = ("imagenet", "mindrecord", "imagenet_samples")

# Fields of DataSettings that apply only to these data sets.
_ONLY_FOR = {
    "train_size": (*IN_MEMORY, "text"),
    "test_size": (*IN_MEMORY, "text"),
    "crop": IN_MEMORY,
    "flip": IN_MEMORY,
    "augment": PHOTOGRAPHS,
    "size": PHOTOGRAPHS,
    "strict": PHOTOGRAPHS,
    "workers": PHOTOGRAPHS,
    "objective": ("text",),
    "length": ("text",),
    "vocabulary": ("text",),
    "held_out": ("text",),
    "corpus": ("text",),
    "unit": ("text",),
}


class DataSettings(Settings):
    """The data set and how batches are made from it.

    Attributes:
        name: `imagenet` is a folder of JPEGs, and `mindrecord` the same images converted; `imagenet_samples` are the
            twenty photographs of a package, for demonstrations; `text` is any plain text, by default Austen's novels.
        corpus: Text: what is read without a folder: Austen's novels, or the King James Bible, a document for each book.
        folder: Folder of the data files; by default they are found or downloaded.
        train_size: Use only the first so many training examples (images or text sequences); all by default.
        test_size: Use only the first so many test examples; all by default.
        crop: Random shift of training images, by up to so many pixels.
        flip: Mirror training images with probability 1/2.
        augment: Photographs: random crops and mirroring in training; with false the centre of each image.
        size: Photographs: height and width of the network's input, in pixels.
        strict: Photographs: an unreadable image ends the run; with false it is skipped and counted.
        workers: Photographs: number of decoding threads; by default the number of processors.
        objective: Text: predict hidden words (`masked`), or each word from the words before it (`next`).
        length: Text: tokens in a sequence, including its first and last special token.
        unit: Text: what a token is: a piece of a word, or a character.
        vocabulary: Text: largest number of word pieces.
        held_out: Text: document to evaluate on; by default the last twentieth of each document.
        rank: Rank of this process, which selects its share of each batch; msrun sets it.
        ranks: Number of processes that share each training batch and the test set; msrun sets it.
    """

    name: Literal["fashion_mnist", "cifar10", "cifar100", "imagenet", "mindrecord", "text", "imagenet_samples"] = (
        "fashion_mnist"
    )
    folder: str | None = None
    train_size: Count | None = None
    test_size: Count | None = None
    crop: Annotated[int, Field(ge=0, le=14)] = 0
    flip: bool = False
    augment: bool = True
    size: Annotated[int, Field(ge=16)] = 224
    strict: bool = False
    workers: Count | None = None
    corpus: Literal["austen", "bible"] = "austen"
    unit: Literal["word_pieces", "characters"] = "word_pieces"
    objective: Literal["masked", "next"] = "masked"
    length: Annotated[int, Field(ge=8)] = 128
    vocabulary: Annotated[int, Field(ge=100)] = 8000
    held_out: str | None = None
    rank: Annotated[int, Field(ge=0)] = 0
    ranks: Count = 1

    @model_validator(mode="after")
    def _check_kind_of_data(self) -> DataSettings:
        """Refuse a setting that has no effect on this data set, and a rank outside the job."""
        for key, sets in _ONLY_FOR.items():
            if getattr(self, key) != type(self).model_fields[key].default and self.name not in sets:
                raise ValueError(f"{key} has no meaning for {self.name}; it is for {', '.join(sets)}")
        if self.unit == "characters" and self.vocabulary != type(self).model_fields["vocabulary"].default:
            raise ValueError("vocabulary bounds the word pieces, and unit is characters; leave it out")
        if self.rank >= self.ranks:
            raise ValueError(f"rank must be 0 to {self.ranks - 1} with ranks = {self.ranks}, and is {self.rank}")
        return self

    @property
    def tokens(self) -> int:
        """Text: tokens of a sequence that are the network's input."""
        return self.length - 2 if self.objective == "next" else self.length
