"""Settings of the data set of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scripts.settings.types import Count, Settings

IN_MEMORY = ("fashion_mnist", "cifar10", "cifar100")
PHOTOGRAPHS = ("imagenet", "mindrecord", "imagenet_samples")

# Settings of DataSettings that mean something only for these kinds of sets.
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
}


class DataSettings(Settings):
    """The data set and how it is fed.

    Attributes:
        name: `imagenet` is a folder of JPEGs, `mindrecord` the same converted; `imagenet_samples` are the twenty
            photographs of a package, for demonstrations; `text` is any plain text, Austen's novels without a folder.
        folder: Where its files are; found or fetched unless given.
        train_size: Only the first so many training examples (in memory: images; text: sequences).
        test_size: Only the first so many test examples.
        crop: Random shift of training images, in pixels.
        flip: Half of the training images are mirrored.
        augment: Photographs: random crops and mirroring; false for the middle of each image.
        size: Photographs: height and width of what the network is shown.
        strict: Photographs: an unreadable one ends the run; it is skipped and counted otherwise.
        workers: Photographs: threads that decode; as many as there are processors unless given.
        objective: Text: predict some words that are hidden (`masked`), or each from those before it (`next`).
        length: Text: tokens of a sequence, with one that begins it and one that ends it.
        vocabulary: Text: word pieces at most.
        held_out: Text: the document to evaluate on; the last twentieth of each unless given.
        rank: Which shard of each batch this process works on; msrun sets it.
        ranks: Processes that share each batch of training and the test set; msrun sets it.
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
    objective: Literal["masked", "next"] = "masked"
    length: Annotated[int, Field(ge=8)] = 128
    vocabulary: Annotated[int, Field(ge=100)] = 8000
    held_out: str | None = None
    rank: Annotated[int, Field(ge=0)] = 0
    ranks: Count = 1

    @model_validator(mode="after")
    def _check_kind_of_data(self) -> DataSettings:
        """Settings of another kind of set are no typing errors to be passed over."""
        for key, sets in _ONLY_FOR.items():
            if getattr(self, key) != type(self).model_fields[key].default and self.name not in sets:
                raise ValueError(f"{key} has no meaning for {self.name}; it is for {', '.join(sets)}")
        if self.rank >= self.ranks:
            raise ValueError(f"rank must be 0 to {self.ranks - 1} with ranks = {self.ranks}, and is {self.rank}")
        return self

    @property
    def tokens(self) -> int:
        """Text: how many tokens of a sequence a network is shown."""
        return self.length - 2 if self.objective == "next" else self.length
