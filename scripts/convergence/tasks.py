"""The tasks of the benchmark, on real data, and the contenders: optimizers with the space in which each is tuned.

A space names settings of a run by their path. A pair of numbers is a range that is searched on a logarithmic scale; a
list has the values to try. The first trial takes ``start``: values that a user would begin with. All optimizers of a
task get equally many trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Space = Mapping[str, tuple[float, float] | list[Any]]


@dataclass(frozen=True)
class Contender:
    """An optimizer with its settings.

    Attributes:
        name: Name in tables and folders.
        optimizer: Name of the optimizer in train.py.
        space: Settings that are searched, by path.
        start: Values of the first trial, by path.
        fixed: Settings that are not searched, by path.
        tuned_as: Name of another contender whose tuned values it takes; the two differ only in ``fixed``.
        sets_target: True if the best of these sets the target that all others are compared with.
    """

    name: str
    optimizer: str
    space: Space = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tuned_as: str | None = None
    sets_target: bool = False


@dataclass(frozen=True)
class Task:
    """A network, its data and its metric.

    Attributes:
        name: Name of the task and its folder.
        title: Title of table and picture.
        metric: Name of the metric on the test set, as in the runs' metrics files.
        epochs: The full schedule.
        settings: Settings of every run, by path.
        contenders: The optimizers.
    """

    name: str
    title: str
    metric: str
    epochs: int
    settings: Mapping[str, Any]
    contenders: tuple[Contender, ...]

    @property
    def higher_is_better(self) -> bool:
        """True if the metric is an accuracy."""
        return self.metric == "test_accuracy"

    @property
    def setters(self) -> str:
        """The names of the optimizers that set the target, for messages."""
        return ", ".join(each.name for each in self.contenders if each.sets_target)

    def contender(self, name: str) -> Contender:
        """The contender with a name."""
        return next(each for each in self.contenders if each.name == name)


def _first_order(
    rates: Mapping[str, tuple[float, float, float]], decay: list[float], sets_target: bool = True
) -> tuple[Contender, ...]:
    """First-order optimizers.

    Args:
        rates: For each, the lowest, the first and the highest learning rate.
        decay: Weight decays to search; the first one is the start. A single one is not searched or set.
        sets_target: Whether they set the target.
    """
    found = []
    for name, (low, first, high) in rates.items():
        space: dict[str, Any] = {f"{name}.learning_rate": (low, high), f"{name}.schedule": ["cosine", "linear"]}
        start: dict[str, Any] = {f"{name}.learning_rate": first, f"{name}.schedule": "cosine"}
        if len(decay) > 1:
            space[f"{name}.weight_decay"] = decay
            start[f"{name}.weight_decay"] = decay[0]
        found.append(Contender(name, name, space, start, sets_target=sets_target))
    return tuple(found)


def _in_eigenbases(
    rates: tuple[float, float, float], decay: list[float], shares: list[float], **fixed: Any
) -> Contender:  # fmt: skip
    """THOR by its defaults, which take the learning rates of Adam.

    Args:
        rates: The lowest, the first and the highest learning rate.
        decay: Weight decays to search, as for :func:`_first_order`.
        shares: Shares of the full schedule to search; the first one is the start.
        fixed: Settings of THOR that are not searched.
    """
    (own,) = _first_order({"thor": rates}, decay, sets_target=False)
    return replace(
        own,
        name="thor_eigen",
        space={**own.space, "epochs_share": shares},
        start={**own.start, "epochs_share": shares[0]},
        fixed={"thor.precondition": "eigenbasis", **{f"thor.{name}": value for name, value in fixed.items()}},
    )


def _second_order(
    space: Space, start: Mapping[str, Any], fixed: Mapping[str, Any], rules: Mapping[str, Mapping[str, Any]]
) -> tuple[Contender, ...]:  # fmt: skip
    """THOR without the trace rule, THOR with it, and K-FAC.

    THOR without the trace rule is tuned; the contenders with it take the tuned values. K-FAC, which has full factors
    and no trace rule, is tuned separately. ``rules`` are the settings of the trace rule, by contender.
    """
    nt = Contender("thor_nt", "thor", space, start, {**fixed, "thor.refresh": "thor_nt"})
    return (
        nt,
        *(
            replace(nt, name=name, fixed={**fixed, "thor.refresh": rule}, tuned_as="thor_nt")
            for name, rule in rules.items()
        ),
        replace(nt, name="kfac", fixed={**nt.fixed, "thor.split": "block", "thor.block_size": 2048}),
    )


def _rules(thor: int, thor_stop: int, update: float, stop: float) -> dict[str, dict[str, Any]]:
    """Settings of the trace rule for two contenders: `thor`, which never stops a layer, and `thor_stop`.

    In short runs on images, a trace changes between candidates by more than the published threshold of 1 %, which would
    therefore keep no inverse.

    Args:
        thor: First step in which `thor` tests traces.
        thor_stop: First step in which `thor_stop` tests traces.
        update: Relative change of a trace below which the cached inverse is kept.
        stop: Relative change of a trace below which a layer's curvature is stopped (`thor_stop`).
    """
    return {
        "thor": {"update": update, "stop": 0.0, "start": thor},
        "thor_stop": {"update": update, "stop": stop, "start": thor_stop},
    }


# The curvature of this network grows by orders of magnitude in its first steps. Running averages that lag and inverses
# that are several steps old make training diverge, and so does a high momentum. Therefore the factors' decay, the
# refresh interval and the momentum are low here.
_AUTOENCODER_THOR = {
    "thor.schedule": "cosine", "thor.split": "block+rank", "thor.rank": 16, "thor.factor_decay": 0.5,
    "thor.interval": {"start": 1, "end": 10, "factor": 1.1}, "thor.factor_interval": 4, "thor.factor_share": 0.5,
}  # fmt: skip

AUTOENCODER = Task(
    "autoencoder", "Autoencoder 784-1000-500-250-30 and back, Fashion-MNIST, batch 1000", "test_error", 10,
    {"network": "autoencoder", "loss": "squared_error", "batch_size": 1000, "eval_every_steps": 10},
    (
        *_first_order({"momentum": (2e-4, 2e-3, 1e-2), "adam": (3e-4, 1e-3, 6e-3), "adafactor": (3e-3, 1e-2, 0.1)},
                      [0.0]),
        *_first_order({"muon": (1e-3, 3e-3, 1e-2), "soap": (1e-3, 3e-3, 1e-2)}, [0.0], sets_target=False),
        _in_eigenbases((3e-4, 1e-3, 6e-3), [0.0], [0.3]),
        *_second_order(
            {"thor.learning_rate": (0.5, 1.5), "thor.damping": (0.3, 3.0), "thor.clip": (0.3, 3.0),
             "thor.momentum": [0.6, 0.7], "epochs_share": [0.3]},
            {"thor.learning_rate": 1.0, "thor.damping": 1.0, "thor.clip": 1.0, "thor.momentum": 0.7,
             "epochs_share": 0.3},
            _AUTOENCODER_THOR, _rules(30, 30, update=0.2, stop=0.03),
        ),
    ),
)  # fmt: skip


_TRAIN = 10_000  # training images: few, so that every optimizer can be tuned and repeated in a short time
_CLASSIFIER = {
    "network": "resnet8",
    "data": {"name": "fashion_mnist", "crop": 2, "flip": True, "train_size": _TRAIN, "test_size": 5000},
}


def _residual(
    batch: int, rate: float, thor_rate: float, norm_momentum: float, rules: Mapping[str, Mapping[str, Any]],
    thor_space: Space, thor_start: Mapping[str, Any], thor_fixed: Mapping[str, Any],
) -> Task:  # fmt: skip
    """The task of ResNet-8 with a batch size.

    Args:
        batch: Batch size.
        rate: Scale of the first-order learning rates.
        thor_rate: Scale of THOR's learning rates.
        norm_momentum: Momentum of BatchNorm's running averages.
        rules: Settings of the trace rule, by contender.
        thor_space: THOR's space for this batch size, added to the common one or replacing parts of it.
        thor_start: THOR's start for this batch size, likewise.
        thor_fixed: THOR's fixed settings for this batch size, likewise.
    """
    steps = _TRAIN // batch
    rates = {"momentum": (0.02, 0.1, 0.4), "adam": (5e-4, 2e-3, 8e-3), "adafactor": (3e-3, 1e-2, 6e-2)}
    modern = {"muon": (2e-3, 8e-3, 3.2e-2), "soap": (2e-3, 8e-3, 3.2e-2)}

    def scaled(given: Mapping[str, tuple[float, float, float]]) -> dict[str, tuple[float, float, float]]:
        return {name: (low * rate, first * rate, high * rate) for name, (low, first, high) in given.items()}

    return Task(
        f"resnet8-{batch}", f"ResNet-8 of width 8, 10,000 images of Fashion-MNIST, batch {batch}", "test_accuracy", 10,
        {**_CLASSIFIER, "network_options": {"in_channels": 1, "width": 8, "norm_momentum": norm_momentum},
         "batch_size": batch, "eval_every_steps": max(1, steps // 2)},
        (
            *_first_order(scaled(rates), [5e-4, 1e-4]),
            *_first_order(scaled(modern), [0.05, 5e-3], sets_target=False),
            _in_eigenbases(scaled(rates)["adam"], [0.05, 5e-3], [0.5, 0.4]),
            *_second_order(
                {"thor.learning_rate": (0.03 * thor_rate, 0.1 * thor_rate), "thor.damping": (1e-4, 3e-3),
                 "thor.clip": (1e-3, 1e-2), "epochs_share": [0.4, 0.5], **thor_space},
                {"thor.learning_rate": 0.05 * thor_rate, "thor.momentum": 0.8, **thor_start},
                # accuracy improves only once a high rate has fallen, so the schedule lets it fall early
                {"thor.factor_share": 0.5, "thor.weight_decay": 5e-4,
                 "thor.schedule": {"shape": "polynomial", "power": 2.0}, **thor_fixed},
                rules,
            ),
        ),
    )  # fmt: skip


RESIDUAL = _residual(
    128, rate=1.0, thor_rate=1.0, norm_momentum=0.9, rules=_rules(0, 20, update=0.1, stop=0.02),
    thor_space={"thor.momentum": [0.8, 0.9]},
    thor_start={"thor.damping": 3e-4, "thor.clip": 3e-3, "epochs_share": 0.5},
    thor_fixed={"thor.interval": {"start": 5, "end": _TRAIN // 128, "factor": 1.3}, "thor.factor_interval": 5},
)  # fmt: skip
# An epoch has only 9 steps, so an average over ten batches is dominated by outdated weights. Therefore BatchNorm's
# averages (for all optimizers) and those of THOR's factors are shorter here, and every step may refresh the inverses.
# The share of epochs is fixed at what the target needs: a search for the best value would always take the largest.
RESIDUAL_LARGE = _residual(
    1024, rate=4.0, thor_rate=4.0, norm_momentum=0.6, rules=_rules(0, 9, update=0.07, stop=0.01),
    thor_space={"thor.damping": (3e-5, 1e-3), "epochs_share": [0.4], "thor.factor_decay": [0.5, 0.7],
                "thor.momentum": [0.8, 0.9]},
    thor_start={"thor.damping": 1e-4, "thor.clip": 2e-3, "epochs_share": 0.4, "thor.factor_decay": 0.5},
    thor_fixed={"thor.interval": 1, "thor.factor_interval": 1},
)  # fmt: skip

# THOR's inner optimizer is Adam, which bounds each weight's step. With Momentum, the first steps make a transformer's
# weights many times larger, and its tokens collapse onto their mean. Scale and shift of normalisation are
# preconditioned too. In so few steps, running averages that lag slow training down. Therefore the factors' decay is
# low, and so is Adam's beta1, both as THOR's inner optimizer and by itself. The trace rule's threshold `update` is
# above the change of most traces between candidates after the warm-up.
LANGUAGE = Task(
    "language", "Causal language model, 2 layers of 128, Austen's novels, batch 128 x 64", "test_loss", 4,
    {"network": "causal_lm", "network_options": {"dropout": 0.0, "max_positions": 64}, "batch_size": 128,
     "data": {"name": "text", "objective": "next", "length": 66, "vocabulary": 2000, "held_out": "persuasion",
              "train_size": 7680, "test_size": 480},
     "decay_all": False, "eval_every_steps": 6, "adam.beta1": 0.8, "muon.adamw_beta1": 0.8, "soap.beta1": 0.8},
    (
        *_first_order({"momentum": (0.05, 0.2, 1.0), "adam": (1e-3, 3e-3, 6e-3), "adafactor": (5e-3, 2e-2, 0.1)},
                      [1e-4, 0.0]),
        *_first_order({"muon": (2e-3, 6e-3, 1.2e-2), "soap": (1e-3, 3e-3, 1e-2)}, [0.01, 0.0], sets_target=False),
        _in_eigenbases((1e-3, 3e-3, 6e-3), [0.01, 0.0], [1.0], beta1=0.8),
        *_second_order(
            {"thor.learning_rate": (3e-3, 1e-2), "thor.damping": (0.015, 0.1), "epochs_share": [1.0]},
            {"thor.learning_rate": 5e-3, "thor.damping": 0.03, "epochs_share": 1.0},
            {"thor.inner": "adam", "thor.norms": True, "thor.factor_interval": 2, "thor.factor_decay": 0.5,
             "thor.schedule": {"shape": "polynomial", "power": 2.0, "warmup_epochs": 1 / 3},  # twenty steps
             "thor.interval": {"start": 1, "end": 10, "factor": 1.1}},
            _rules(20, 20, update=0.02, stop=0.001),
        ),
    ),
)  # fmt: skip

TASKS = {task.name: task for task in (AUTOENCODER, RESIDUAL, RESIDUAL_LARGE, LANGUAGE)}
