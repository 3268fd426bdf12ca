"""Every setting of a training run: its type, its default, and which values are allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Base of all blocks: unknown keys are refused, nothing is converted but int to float."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _block_size(value: Any) -> int | str:
    """A number of rows, `auto`, or the path of a profile."""
    if isinstance(value, bool) or not isinstance(value, int | str) or value in ("", 0):
        raise ValueError("must be a whole number >= 1, 'auto', or the path of a profile")
    if isinstance(value, int) and value < 1:
        raise ValueError("must be a whole number >= 1, 'auto', or the path of a profile")
    return value


def _from_name(key: str) -> BeforeValidator:
    """Lets a block be given by the one value that matters most: `schedule: cosine`."""

    def expand(value: Any) -> Any:
        return {key: value} if not isinstance(value, dict | BaseModel) else value

    return BeforeValidator(expand)


class Schedule(Settings):
    """How a learning rate moves from its initial value over the run, in epochs.

    Attributes:
        shape: `polynomial` is (1 - epoch / end_epoch)^power.
        power: Exponent of `polynomial`.
        end_epoch: Where the shape reaches its end; the run's last epoch unless given.
        final: Share of the initial value that the shape ends at.
        warmup_epochs: The rate rises linearly from zero over so many epochs first.
    """

    shape: Literal["constant", "linear", "cosine", "polynomial"] = "cosine"
    power: Positive = 2.0
    end_epoch: Positive | None = None
    final: Share = 0.0
    warmup_epochs: NonNegative = 0.0


NamedSchedule = Annotated[Schedule, _from_name("shape")]


class Refresh(Settings):
    """The trace rule: a published preset, or both thresholds."""

    preset: Literal["thor", "thor_stop", "thor_nt"] | None = None
    update: NonNegative | None = None
    stop: NonNegative | None = None

    @model_validator(mode="after")
    def _complete(self) -> Refresh:
        """Either a preset, or two ordered thresholds."""
        thresholds = (self.update, self.stop)
        if (self.preset is None) == (thresholds == (None, None)):
            raise ValueError("must be a preset (thor, thor_stop, thor_nt) or have both update and stop")
        if self.preset is None:
            if self.update is None or self.stop is None:
                raise ValueError("needs both update and stop")
            if self.stop > self.update:
                raise ValueError(f"stop must be at most update, and {self.stop} > {self.update}")
        return self


class Interval(Settings):
    """Steps between two refreshes: from start to end, each about factor times the one before."""

    start: Count
    end: Count
    factor: Annotated[float, Field(ge=1)] = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if self.end < self.start:
            raise ValueError(f"end must be at least start, and {self.end} < {self.start}")
        return self


def _interval(value: Any) -> Any:
    """A number of steps stands for an interval that does not grow."""
    if isinstance(value, dict | BaseModel):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number of steps >= 1, or have start, end and factor")
    return {"start": value, "end": value}


class ThorSettings(Settings):
    """Hyper-parameters of thor.THOR.

    Attributes:
        damping: Damping at the start.
        damping_decay: Factor on the damping over ten epochs, as published.
        interval: Steps between refreshes: a number, or start, end and factor.
        factor_interval: Steps between curvature steps; None leaves it to the optimizer.
        clip: Bound on the norm of a step; None for no bound.
        skip: Patterns of layer names that keep their plain gradient.
    """

    learning_rate: Positive = 0.05
    schedule: NamedSchedule = Schedule()
    damping: Positive = 0.03
    damping_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    block_size: Annotated[int | str, PlainValidator(_block_size)] = 128
    split: Literal["block", "block+mean", "block+rank"] = "block+mean"
    rank: Count = 16
    refresh: Annotated[Refresh, _from_name("preset")] = Refresh(preset="thor_stop")
    interval: Annotated[Interval, BeforeValidator(_interval)] = Interval(start=100, end=100)
    factor_interval: Count | None = None
    factor_decay: Share = 0.95
    momentum: Share = 0.9
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None
    skip: list[str] = []


class MomentumSettings(Settings):
    """Hyper-parameters of first_order.Momentum; momentum is its alpha."""

    learning_rate: Positive = 0.05
    schedule: NamedSchedule = Schedule()
    momentum: Share = 0.9
    mode: Literal["standard", "nesterov"] = "standard"
    weight_decay: NonNegative = 0.0


class AdamSettings(Settings):
    """Hyper-parameters of first_order.Adam."""

    learning_rate: Positive = 0.001
    schedule: NamedSchedule = Schedule()
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    use_nesterov: bool = False
    weight_decay: NonNegative = 0.0


class AdafactorSettings(Settings):
    """Hyper-parameters of first_order.Adafactor, whose learning rate is relative to the weights; eps1 may be null."""

    learning_rate: Positive = 0.01
    schedule: NamedSchedule = Schedule()
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    eps1: NonNegative | None = None
    eps2: NonNegative = 1e-3
    d: Annotated[float, Field(ge=1)] = 1.0
    weight_decay: NonNegative = 0.0


class DataSettings(Settings):
    """The data set and how it is fed.

    Attributes:
        folder: Where its files are; found or fetched unless given.
        train_size: Only the first so many training images.
        test_size: Only the first so many test images.
        crop: Random shift of training images, in pixels.
        flip: Half of the training images are mirrored.
    """

    name: Literal["fashion_mnist"] = "fashion_mnist"
    folder: str | None = None
    train_size: Count | None = None
    test_size: Count | None = None
    crop: Annotated[int, Field(ge=0, le=14)] = 0
    flip: bool = False


class TrainSettings(Settings):
    """A training run.

    Attributes:
        network: Short name of a network of `models`, or module:callable.
        network_options: Arguments for the network's factory.
        loss: The two last compare the network's output with its own input, as an autoencoder needs.
        batch_size: Examples a step.
        accumulation: Steps whose gradients are averaged into one update.
        checkpoint_every: Steps between checkpoints, besides the one after each epoch; 0 for none.
        eval_every: Epochs between evaluations on the test set.
        log_every: Steps between lines in metrics.jsonl.
        out: Folder of the run.
    """

    network: str = "smallconv"
    network_options: dict[str, Any] = {}
    loss: Literal["cross_entropy", "squared_error", "binary_cross_entropy"] = "cross_entropy"
    label_smoothing: Share = 0.0
    data: DataSettings = DataSettings()
    epochs: Count = 5
    batch_size: Count = 128
    accumulation: Count = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    optimizer: Literal["thor", "momentum", "adam", "adafactor"] = "thor"
    thor: ThorSettings = ThorSettings()
    momentum: MomentumSettings = MomentumSettings()
    adam: AdamSettings = AdamSettings()
    adafactor: AdafactorSettings = AdafactorSettings()
    loss_scale: Annotated[float, Field(ge=1)] = 1.0
    device: Literal["auto", "CPU", "GPU", "Ascend"] = "auto"
    mode: Literal["graph", "pynative"] = "graph"
    out: str = "runs/train"
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    eval_every: Count = 1
    log_every: Count = 50

    @property
    def reconstructs(self) -> bool:
        """Whether the network is to give back its input."""
        return self.loss != "cross_entropy"
