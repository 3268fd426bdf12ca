"""Every setting of a training run: its type, its default, and which values are allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, model_validator

from scripts.settings.data_settings import IN_MEMORY, DataSettings
from scripts.settings.types import Count, NonNegative, Positive, Settings, Share


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
    """How a learning rate, or damping, moves from its initial value over the run, in epochs.

    Attributes:
        shape: `polynomial` is (1 - epoch / end_epoch)^power. `thor` is the same as THOR's authors count it, at the
            epoch that a step ends in, and halved at each epoch of `halve_at`.
        power: Exponent of `polynomial` and `thor`.
        end_epoch: Where the shape reaches its end; the run's last epoch unless given.
        end_update: The same as a number of updates, instead of end_epoch.
        final: Share of the initial value that the shape ends at.
        warmup_epochs: The rate rises linearly from zero over so many epochs first.
        halve_at: Epochs at which the shape `thor` is halved.
    """

    shape: Literal["constant", "linear", "cosine", "polynomial", "thor"] = "cosine"
    power: Positive = 2.0
    end_epoch: Positive | None = None
    end_update: Count | None = None
    final: Share = 0.0
    warmup_epochs: NonNegative = 0.0
    halve_at: list[Positive] = []

    @model_validator(mode="after")
    def _check_shape_thor(self) -> Schedule:
        """The published shape has no warm-up and ends at zero."""
        if self.shape == "thor" and (self.warmup_epochs or self.final):
            raise ValueError("the shape thor has neither warmup_epochs nor final")
        if self.shape != "thor" and self.halve_at:
            raise ValueError(f"halve_at belongs to the shape thor, and the shape is {self.shape}")
        return self

    @model_validator(mode="after")
    def _check_shape_options(self) -> Schedule:
        """What a shape does not look at is no typing error to be passed over."""
        if self.shape not in ("polynomial", "thor") and self.power != type(self).model_fields["power"].default:
            raise ValueError(f"power belongs to the shapes polynomial and thor, and the shape is {self.shape}")
        ending = [name for name in ("final", "end_epoch", "end_update") if getattr(self, name)]
        if self.shape == "constant" and ending:
            raise ValueError(f"{ending[0]} tells how a shape ends, and the shape is constant; leave it out")
        if self.end_epoch is not None and self.end_update is not None:
            raise ValueError("has both end_epoch and end_update; give one of them")
        return self


NamedSchedule = Annotated[Schedule, _from_name("shape")]


class Refresh(Settings):
    """The trace rule: a published preset, or both thresholds.

    Attributes:
        preset: A published rule; or give `update` and `stop`.
        update: A layer whose trace has changed by more than this share refreshes.
        stop: One whose trace has changed by less stops for good; 0 for never.
        start: Update of the first candidate that is tested; all before it refresh.
    """

    preset: Literal["thor", "thor_stop", "thor_nt"] | None = None
    update: NonNegative | None = None
    stop: NonNegative | None = None
    start: Annotated[int, Field(ge=0)] = 0

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
    """Updates between two refreshes: from start to end, each about factor times the one before.

    Attributes:
        start: Updates between the first two refreshes.
        end: Updates between two refreshes at most.
        factor: How much longer each interval is than the one before, about; more than 1 where end is more than start.
    """

    start: Count
    end: Count
    factor: Annotated[float, Field(ge=1)] = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if self.end < self.start:
            raise ValueError(f"end must be at least start, and {self.end} < {self.start}")
        if self.end > self.start and self.factor == 1.0:
            raise ValueError(
                f"an interval from {self.start} to {self.end} needs a factor > 1, such as 1.2: with 1 it stays at start"
            )
        return self


def _interval(value: Any) -> Any:
    """A number of steps stands for an interval that does not grow."""
    if isinstance(value, dict | BaseModel):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number of steps >= 1, or have start, end and factor")
    return {"start": value, "end": value}


#: What thor.inner = adam takes from the block thor and not from the block adam.
THOR_KEYS_FOR_ADAM = ("learning_rate", "schedule", "weight_decay")


class ThorSettings(Settings):
    """Hyper-parameters of thor.THOR.

    Attributes:
        damping: Damping at the start.
        damping_decay: Factor on the damping over ten epochs, as published for ResNet-50.
        damping_schedule: Another way for the damping to fall, as a learning rate does; published for BERT.
        block_size: Rows of a block of the curvature; `auto` measures at the first step.
        split: The paper's blocks, or with what they cut kept as a mean or as `rank` directions.
        rank: Directions that the split `block+rank` keeps.
        refresh: The trace rule.
        interval: Updates between refreshes: a number, or start, end and factor.
        factor_interval: Updates between curvature steps; None leaves it to the optimizer.
        factor_share: Share of a batch's examples from which factors are gathered.
        factor_decay: Share of the past in the running average of the factors.
        inner: What moves the weights by the preconditioned gradients: Momentum, or Adam with beta1, beta2, epsilon and
            use_nesterov of the section adam.
        momentum: Momentum of the steps, with inner = momentum.
        clip: Bound on the squared length of a step in the curvature's norm; None for no bound.
        skip: Patterns of layer names that keep their plain gradient.
        norms: Whether normalisation layers are preconditioned too, by their diagonal Fisher.
        clip_each: Bound on the norm of each weight's gradient, before it is preconditioned; None for no bound.
        grad_worker_fraction: In a job, share of the ranks that hold each layer's inverses.
        per: In a job, what one rank inverts as a whole.
    """

    learning_rate: Positive = 0.05
    schedule: NamedSchedule = Schedule()
    damping: Positive = 0.03
    damping_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    damping_schedule: NamedSchedule | None = None
    block_size: Annotated[int | str, PlainValidator(_block_size)] = 128
    split: Literal["block", "block+mean", "block+rank"] = "block+mean"
    rank: Count = 16
    refresh: Annotated[Refresh, _from_name("preset")] = Refresh(preset="thor_stop")
    interval: Annotated[Interval, BeforeValidator(_interval)] = Interval(start=100, end=100)
    factor_interval: Count | None = None
    factor_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    factor_decay: Share = 0.95
    inner: Literal["momentum", "adam"] = "momentum"
    momentum: Share = 0.9
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None
    skip: list[str] = []
    norms: bool = False
    clip_each: Positive | None = None
    grad_worker_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    per: Literal["layer", "factor", "block"] = "block"

    @model_validator(mode="after")
    def _inner(self) -> ThorSettings:
        """What is Momentum's has no meaning for Adam."""
        if self.inner == "adam" and self.momentum != type(self).model_fields["momentum"].default:
            raise ValueError("momentum belongs to inner = momentum; with inner = adam set adam.beta1")
        if self.inner == "adam" and self.clip is not None:
            raise ValueError("clip bounds learning rate x direction, which is no step of inner = adam; leave it out")
        return self

    @model_validator(mode="after")
    def _split(self) -> ThorSettings:
        """Only one split keeps so many directions."""
        if self.split != "block+rank" and self.rank != type(self).model_fields["rank"].default:
            raise ValueError(f"rank belongs to split = block+rank, and split is {self.split}; leave it out")
        return self

    @model_validator(mode="after")
    def _damping(self) -> ThorSettings:
        """Damping falls in one way, and is never zero."""
        falling = self.damping_schedule
        if falling is None:
            return self
        if self.damping_decay != 1.0:
            raise ValueError("has both damping_decay and damping_schedule; give one of them")
        if falling.shape == "thor" or falling.warmup_epochs:
            raise ValueError(
                "damping_schedule has neither the shape thor nor warmup_epochs: these are for learning rates"
            )
        if falling.shape != "constant" and not falling.final:
            raise ValueError("damping_schedule needs final > 0: damping must stay greater than 0")
        return self


class MomentumSettings(Settings):
    """Hyper-parameters of first_order.Momentum; momentum is its alpha.

    Attributes:
        momentum: What is kept of the velocity.
        mode: Whether the step looks ahead.
    """

    learning_rate: Positive = 0.05
    schedule: NamedSchedule = Schedule()
    momentum: Share = 0.9
    mode: Literal["standard", "nesterov"] = "standard"
    weight_decay: NonNegative = 0.0


class AdamSettings(Settings):
    """Hyper-parameters of first_order.Adam.

    Attributes:
        beta1: Share of the past in the average of gradients.
        beta2: Share of the past in the average of their squares.
        epsilon: Added to the root of the average of squares.
        use_nesterov: Whether the step looks ahead.
    """

    learning_rate: Positive = 0.001
    schedule: NamedSchedule = Schedule()
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    use_nesterov: bool = False
    weight_decay: NonNegative = 0.0


class AdafactorSettings(Settings):
    """Hyper-parameters of first_order.Adafactor, whose learning rate is relative to the weights; eps1 may be null.

    Attributes:
        beta2_decay: Exponent of the step in the average of squares; nearer to 0 forgets faster.
        eps1: Least size of the averages that are divided by; null for the type's machine epsilon.
        eps2: Least size of the weights that the learning rate is relative to.
        d: Bound on the root mean square of an update, before the learning rate.
    """

    learning_rate: Positive = 0.01
    schedule: NamedSchedule = Schedule()
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    eps1: NonNegative | None = None
    eps2: NonNegative = 1e-3
    d: Annotated[float, Field(ge=1)] = 1.0
    weight_decay: NonNegative = 0.0


def _loss_scale(value: Any) -> float | str:
    """A fixed factor, or `dynamic`."""
    if value == "dynamic":
        return "dynamic"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        raise ValueError("must be a number >= 1, or dynamic")
    return float(value)


class TrainSettings(Settings):
    """A training run.

    Attributes:
        network: Short name of a network of `models`, or module:callable.
        network_options: Arguments for the network's factory.
        loss: The two last compare the network's output with its own input, as an autoencoder needs.
        label_smoothing: Share of each target that is spread over all classes.
        epochs: How often the training set is gone through.
        batch_size: Examples a step, of all processes of a job together: each has an equal share.
        accumulation: Steps whose gradients are averaged into one update.
        seed: Decides initial weights, order and augmentation.
        optimizer: Which optimizer, and which section below is used.
        amp: Mixed precision as mindspore.amp has it: O0 none, O2 float16 but for normalisation, O3 all of it.
        loss_scale: Factor on the loss while gradients are computed, against underflow: fixed, or `dynamic`.
        decay_all: Weight decay acts on all weights, biases too, but those with beta or gamma in their names, as
            MindSpore calls normalisation's (adafactor: on these too); false leaves out all weights of one dimension.
        clip_norm: Bound on the norm of all gradients together (first-order optimizers; THOR has thor.clip).
        ema: Share of the past in a running average of the weights, which is then what is evaluated; 0 for none.
        device: Where to train; `auto` takes an Ascend or a GPU where there is one.
        mode: Compiled as a whole, or operator by operator, to find errors.
        out: Folder of the run.
        checkpoint_every: Steps between checkpoints, besides the one after each epoch; 0 for none. Where updates take
            several steps (accumulation), it is made with the update that is under way then; eval_every_steps alike.
        keep: Newest checkpoints that are kept, besides the best one.
        eval_every: Epochs between evaluations on the test set.
        eval_every_steps: Steps between further evaluations; 0 for none.
        eval_batch_size: Examples a batch of evaluation, of each process; 1000 where the set is in memory, else its
            share of batch_size.
        log_every: Steps between lines in metrics.jsonl.
        tensorboard: Also write event files for TensorBoard (needs tensorboardX).
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
    amp: Literal["O0", "O2", "O3"] = "O0"
    loss_scale: Annotated[float | str, PlainValidator(_loss_scale)] = 1.0
    decay_all: bool = True
    clip_norm: Positive | None = None
    ema: Share = 0.0
    device: Literal["auto", "CPU", "GPU", "Ascend"] = "auto"
    mode: Literal["graph", "pynative"] = "graph"
    out: str = "runs/train"
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    keep: Count = 2
    eval_every: Count = 1
    eval_every_steps: Annotated[int, Field(ge=0)] = 0
    eval_batch_size: Count | None = None
    log_every: Count = 50
    tensorboard: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
        """What is refused only in combination."""
        if self.clip_norm is not None and self.optimizer == "thor":
            raise ValueError("clip_norm is for first-order optimizers; with thor use thor.clip, the bound on its step")
        if self.reconstructs and self.label_smoothing:
            raise ValueError(f"label_smoothing belongs to loss = cross_entropy, and loss is {self.loss}; leave it out")
        if self.loss_scale == "dynamic" and self.accumulation > 1 and self.optimizer != "thor":
            raise ValueError("loss_scale = dynamic with accumulation > 1 needs the optimizer thor; give a fixed one")
        if self.batch_size % self.data.ranks:
            raise ValueError(
                f"batch_size = {self.batch_size} must be a multiple of the number of processes, {self.data.ranks}: "
                f"it is shared among them"
            )
        if self.reconstructs and self.data.name not in IN_MEMORY:
            raise ValueError(f"loss = {self.loss} reconstructs images in memory, and data.name is {self.data.name}")
        return self

    @model_validator(mode="after")
    def _check_adam_in_thor(self) -> TrainSettings:
        """Adam inside THOR has these from the block thor: in its own they would be passed over."""
        if self.optimizer != "thor" or self.thor.inner != "adam":
            return self
        for name in THOR_KEYS_FOR_ADAM:
            if getattr(self.adam, name) != AdamSettings.model_fields[name].default:
                raise ValueError(f"adam.{name} means nothing with thor.inner = adam; set thor.{name}")
        return self

    @property
    def share(self) -> int:
        """Examples that this process has of each batch."""
        return self.batch_size // self.data.ranks

    @property
    def reconstructs(self) -> bool:
        """Whether the network is to give back its input."""
        return self.loss != "cross_entropy"
