"""Every setting of a training run: its type, its default, and which values are allowed."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, model_validator

from scripts.settings.data_settings import IN_MEMORY, DataSettings
from scripts.settings.first_order_settings import (  # fmt: skip
    AdafactorSettings,
    AdamSettings,
    MomentumSettings,
    MuonSettings,
    SoapSettings,
)
from scripts.settings.schedule_settings import NamedSchedule, Schedule, from_name
from scripts.settings.types import Count, NonNegative, Positive, Settings, Share


def _block_size(value: Any) -> int | str:
    """A number of rows, `auto`, or the path of a profile."""
    if isinstance(value, bool) or not isinstance(value, int | str) or value in ("", 0):
        raise ValueError("must be a whole number >= 1, 'auto', or the path of a profile")
    if isinstance(value, int) and value < 1:
        raise ValueError("must be a whole number >= 1, 'auto', or the path of a profile")
    return value


class Refresh(Settings):
    """The trace rule: a published preset, or two thresholds on the relative change of a layer's trace.

    Attributes:
        preset: A published rule, instead of `update` and `stop`.
        update: A layer refreshes if its trace has changed by more than this share.
        stop: A layer stops for good if its trace has changed by less than this share; 0 for never.
        start: Update from which candidate refreshes are tested; earlier ones always refresh. None for 0 with a constant
            interval, else for the update at which the interval is as long as the average of the factors remembers.
    """

    preset: Literal["thor", "thor_stop", "thor_nt"] | None = None
    update: NonNegative | None = None
    stop: NonNegative | None = None
    start: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Refresh:
        """Require either a preset or two ordered thresholds."""
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
    """Updates between two candidate refreshes, which grow from start to end.

    Attributes:
        start: Updates between the first two candidate refreshes.
        end: Updates between two candidate refreshes at most.
        factor: Approximate ratio of an interval to the one before; must be more than 1 if end is more than start.
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
    """Expand a number of steps to a constant interval."""
    if isinstance(value, dict | BaseModel):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number of steps >= 1, or have start, end and factor")
    return {"start": value, "end": value}


#: With thor.inner = adam, settings that are read from the section thor and not from the section adam.
THOR_KEYS_FOR_ADAM = ("learning_rate", "schedule", "weight_decay")


#: The default of settings that are filled in by the way to precondition.
FILLED: Any = None
#: Settings of THOR that only one way to precondition has.
OF_INVERSES = (
    "damping", "relative_damping", "damping_decay", "damping_schedule", "rank", "inner", "momentum", "clip", "graft",
)  # fmt: skip
OF_EIGENBASES = ("beta1", "beta2", "epsilon", "rate_factor")
#: What THOR's settings are where they are left out: thor.THOR's own defaults, so that a run's folder has them all.
_GROWING = Interval(start=1, end=100, factor=1.1)
DEFAULTS: dict[str, dict[str, Any]] = {
    "inverse": {
        "learning_rate": 0.05, "split": "block+mean", "refresh": Refresh(preset="thor_stop"),
        "interval": Interval(start=100, end=100), "factor_decay": 0.95, "graft": False,
    },
    "eigenbasis": {
        "learning_rate": 2e-3, "split": "block", "refresh": Refresh(preset="thor_nt"), "interval": _GROWING,
        "factor_decay": 0.9, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "rate_factor": 4.0,
    },
}  # fmt: skip
#: The same for inverses whose damping is left out too.
WITHOUT_DAMPING: dict[str, Any] = {"relative_damping": 0.01, "interval": _GROWING, "graft": True}


class ThorSettings(Settings):
    """Hyper-parameters of thor.THOR.

    Attributes:
        learning_rate: Learning rate at its highest; None for 0.002 with `eigenbasis` and 0.05 with `inverse`.
        precondition: `inverse`: the gradient is multiplied by damped inverses; `eigenbasis`: Adam in the eigenbases of
            the factors. None for `inverse` with a damping, else `eigenbasis`.
        beta1: Decay of the running average of the gradient, with precondition `eigenbasis`; None for 0.9.
        beta2: Decay of the running average of its square; None for 0.95.
        epsilon: Adam's epsilon, with precondition `eigenbasis`; None for 1e-8.
        rate_factor: Factor on the learning rate of layers in eigenbases; None for 4, with which Adam's own rates fit.
        damping: Initial damping of inverses; None for `eigenbasis`, or with `inverse` for a relative one.
        relative_damping: Damping as a share of each layer's mean eigenvalue, instead of damping; None for 0.01. With
            it, graft and interval have the defaults of inverses without a damping.
        damping_decay: Factor on the damping over ten epochs, as published for ResNet-50; 1 for none.
        damping_schedule: Another way to lower the damping: a schedule, instead of damping_decay; published for BERT.
        block_size: Rows of a diagonal block of a factor; `auto` measures at the first step; or the path of a profile.
        split: How a factor is approximated: its diagonal blocks as in the paper, and with `block+mean` or
            `block+rank` also the off-diagonal part, as a mean or as a low-rank matrix. None for `block+mean` with
            inverses; eigenbases have `block`.
        rank: Rank of the off-diagonal part with split `block+rank`.
        refresh: The trace rule; None for `thor_stop` with inverses and `thor_nt` with eigenbases.
        interval: Updates between candidate refreshes: a number, or start, end and factor. None for 100 with a damping,
            else for one that grows from 1 to 100.
        factor_interval: Updates between curvature steps; None leaves it to the optimizer.
        factor_share: Share of a batch's examples from which the factors are computed.
        factor_decay: Decay of the running average of the factors; None for 0.95 with inverses, 0.9 with eigenbases.
        inner: Optimizer that applies the preconditioned gradients: Momentum, or Adam with beta1, beta2, epsilon and
            use_nesterov of the section adam.
        momentum: Momentum of the steps, with inner = momentum.
        clip: Bound on the squared length of a step in the curvature's norm; None for no bound.
        graft: Scale each layer's direction to the norm of its gradient, so that Momentum's own learning rate fits; None
            for true if damping and clip are left out.
        skip: Patterns of the names of layers that are not preconditioned.
        norms: Precondition normalisation layers too, by their diagonal Fisher.
        clip_each: Bound on the norm of each weight's gradient, before it is preconditioned; None for no bound.
        weight_sharing: Whether rows such as tokens or pixels are terms of the loss: `expand` if each is one, `pooled`
            or `reduce` if those of an example are one; None for expand in a network with an embedding, else pooled.
        grad_worker_fraction: In a job, share of the ranks that hold each layer's inverses.
        per: In a job, unit of inversion that is assigned to one rank.
    """

    learning_rate: Positive = FILLED
    schedule: NamedSchedule = Schedule()
    precondition: Literal["inverse", "eigenbasis"] | None = None
    beta1: Share | None = None
    beta2: Share | None = None
    epsilon: Positive | None = None
    rate_factor: Positive | None = None
    damping: Positive | None = None
    relative_damping: Positive | None = None
    damping_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    damping_schedule: NamedSchedule | None = None
    block_size: Annotated[int | str, PlainValidator(_block_size)] = 128
    split: Literal["block", "block+mean", "block+rank"] = FILLED
    rank: Count = 16
    refresh: Annotated[Refresh, from_name("preset")] = FILLED
    interval: Annotated[Interval, BeforeValidator(_interval)] = FILLED
    factor_interval: Count | None = None
    factor_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    factor_decay: Share = FILLED
    inner: Literal["momentum", "adam"] = "momentum"
    momentum: Share = 0.9
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None
    graft: bool | None = None
    skip: list[str] = []
    norms: bool = False
    clip_each: Positive | None = None
    weight_sharing: Literal["expand", "pooled", "reduce"] | None = None
    grad_worker_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    per: Literal["layer", "factor", "block"] = "block"

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, values: Any) -> Any:
        """Leave out settings that are null, where null is the default: `_precondition` fills them in."""
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {k: v for k, v in values.items() if v is not None or k not in fields or fields[k].default is not None}

    @model_validator(mode="after")
    def _precondition(self) -> ThorSettings:
        """Choose the way to precondition, refuse settings of the other one, and fill in its defaults."""
        if self.damping is not None and self.relative_damping is not None:
            raise ValueError("has both damping and relative_damping; give one of them")
        damped = self.damping is not None or self.relative_damping is not None
        kind = self.precondition or ("inverse" if damped else "eigenbasis")
        for name in OF_INVERSES if kind == "eigenbasis" else OF_EIGENBASES:
            if getattr(self, name) != type(self).model_fields[name].default:
                other = "give precondition = inverse" if kind == "eigenbasis" else "leave out the damping"
                cure = f"leave it out, or {other}" if self.precondition is None else "leave it out"
                raise ValueError(f"{name} means nothing with precondition = {kind}; {cure}")
        found = {"precondition": kind, **DEFAULTS[kind]}
        if kind == "inverse" and self.damping is None:
            found |= WITHOUT_DAMPING | ({} if self.clip is None else {"graft": False})
        for name, value in found.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        return self

    @model_validator(mode="after")
    def _inner(self) -> ThorSettings:
        """Refuse settings of Momentum with inner = adam."""
        if self.inner == "adam" and self.momentum != type(self).model_fields["momentum"].default:
            raise ValueError("momentum belongs to inner = momentum; with inner = adam set adam.beta1")
        if self.inner == "adam" and self.clip is not None:
            raise ValueError("clip bounds learning rate x direction, which is no step of inner = adam; leave it out")
        return self

    @model_validator(mode="after")
    def _split(self) -> ThorSettings:
        """Refuse a rank with a split that does not use it."""
        if self.split != "block+rank" and self.rank != type(self).model_fields["rank"].default:
            raise ValueError(f"rank belongs to split = block+rank, and split is {self.split}; leave it out")
        return self

    @model_validator(mode="after")
    def _damping(self) -> ThorSettings:
        """Refuse two ways to change the damping, and a schedule that brings it to zero."""
        falling = self.damping_schedule
        if self.damping is None and (falling is not None or self.damping_decay != 1.0):
            raise ValueError("damping_schedule and damping_decay lower a damping, and there is none; give damping")
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
        init: Weights to start from: a checkpoint file, or the folder of a run, whose best checkpoint is taken, else its
            last. Tensors that the file lacks, or has with another shape, keep their initial values.
        loss: `squared_error` and `binary_cross_entropy` compare the output with the input, as for an autoencoder.
        label_smoothing: Share of each target that is spread over all classes.
        epochs: Passes over the training set.
        batch_size: Examples per step, over all processes of a job; each process has an equal share.
        accumulation: Steps whose gradients are averaged into one update.
        seed: Seed of the initial weights, the order of the examples and the augmentation.
        optimizer: The optimizer, which also selects the section below that is used.
        amp: Mixed precision level of mindspore.amp: O0 none, O2 float16 except normalisation, O3 float16 throughout.
        loss_scale: Factor on the loss while gradients are computed, against underflow: fixed, or `dynamic`.
        decay_all: With true, weight decay acts on all weights, including biases, except those with beta or gamma in
            their names (MindSpore's normalisation; adafactor decays these too); with false, on none of dimension one.
        clip_norm: Bound on the norm of all gradients together (first-order optimizers; THOR has thor.clip_each,
            and with inverses thor.clip).
        ema: Decay of a running average of the weights, which is evaluated instead of the weights; 0 for none.
        device: Device to train on; `auto` takes an Ascend or a GPU if there is one.
        mode: `graph` compiles the step; `pynative` runs operator by operator, for debugging.
        out: Folder of the run.
        checkpoint_every: Steps between checkpoints, in addition to the one after each epoch; 0 for none. With
            accumulation, a checkpoint waits for the end of the update; so does an evaluation (eval_every_steps).
        keep: Number of newest checkpoints that are kept, in addition to the best one.
        eval_every: Epochs between evaluations on the test set.
        eval_every_steps: Steps between additional evaluations; 0 for none.
        eval_batch_size: Examples per evaluation batch of each process; by default 1000 for a data set in memory,
            otherwise the process's share of batch_size.
        log_every: Steps between lines in metrics.jsonl.
        tensorboard: Also write event files for TensorBoard (needs tensorboardX).
    """

    network: str = "smallconv"
    network_options: dict[str, Any] = {}
    init: str | None = None
    loss: Literal["cross_entropy", "squared_error", "binary_cross_entropy"] = "cross_entropy"
    label_smoothing: Share = 0.0
    data: DataSettings = DataSettings()
    epochs: Count = 5
    batch_size: Count = 128
    accumulation: Count = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    optimizer: Literal["thor", "momentum", "adam", "adafactor", "muon", "soap"] = "thor"
    thor: ThorSettings = ThorSettings()
    momentum: MomentumSettings = MomentumSettings()
    adam: AdamSettings = AdamSettings()
    adafactor: AdafactorSettings = AdafactorSettings()
    muon: MuonSettings = MuonSettings()
    soap: SoapSettings = SoapSettings()
    amp: Literal["O0", "O2", "O3"] = "O0"
    loss_scale: Annotated[float | str, PlainValidator(_loss_scale)] = 1.0
    decay_all: bool = True
    clip_norm: Positive | None = None
    ema: Share = 0.0
    device: Literal["auto", "CPU", "GPU", "Ascend"] = "auto"
    mode: Literal["graph", "pynative"] = "graph"
    out: Annotated[str, AfterValidator(os.path.expanduser)] = "runs/train"
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    keep: Count = 2
    eval_every: Count = 1
    eval_every_steps: Annotated[int, Field(ge=0)] = 0
    eval_batch_size: Count | None = None
    log_every: Count = 50
    tensorboard: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
        """Refuse settings that contradict each other."""
        if self.clip_norm is not None and self.optimizer == "thor":
            raise ValueError(
                "clip_norm is for first-order optimizers; with thor use thor.clip_each, or thor.clip with inverses"
            )
        if self.optimizer == "soap" and self.device == "Ascend":
            raise ValueError("soap needs eigh, which MindSpore has for CPU and GPU only; take another optimizer")
        if self.reconstructs and self.label_smoothing:
            raise ValueError(f"label_smoothing belongs to loss = cross_entropy, and loss is {self.loss}; leave it out")
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
        """With thor.inner = adam, refuse settings of the section adam that would be ignored."""
        if self.optimizer != "thor" or self.thor.inner != "adam":
            return self
        for name in THOR_KEYS_FOR_ADAM:
            if getattr(self.adam, name) != AdamSettings.model_fields[name].default:
                raise ValueError(f"adam.{name} means nothing with thor.inner = adam; set thor.{name}")
        return self

    @property
    def share(self) -> int:
        """Examples of each batch on this process."""
        return self.batch_size // self.data.ranks

    @property
    def reconstructs(self) -> bool:
        """True if the target is the network's input."""
        return self.loss != "cross_entropy"
