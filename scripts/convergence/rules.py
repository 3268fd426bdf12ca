"""The rules of the benchmark as data: tasks, optimizers with the spaces in which they are tuned, seeds, targets.

`load` reads a rules file strictly; `search.check` then sees that every trial in it is a valid run. A space is a list of
values, whose first one is the first guess, or a range with a first guess in it. In a file, a name stands for a space of
the task, or of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails

from scripts.settings.types import Count, NonNegative, Positive, Settings, Share
from scripts.settings.yaml_config import read_yaml
from thor.runtime.errors import UserError

DEFAULT = Path(__file__).with_name("rules.yaml")
LENGTH = "length"  # in a space: the share of the task's epochs over which the schedule falls


class Range(Settings):
    """Values from low to high, searched on a logarithmic scale; `first` is the first guess."""

    low: Positive
    first: Positive
    high: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low <= self.first <= self.high or self.low == self.high:
            raise ValueError(
                f"low <= first <= high and low < high are needed, and are {self.low, self.first, self.high}"
            )
        return self


Space = Range | list[Any]


def _space(value: Any) -> Space:
    """A range or a list of different values."""
    if isinstance(value, Range):
        return value
    if isinstance(value, dict):
        return Range.model_validate({key: float(v) if type(v) is int else v for key, v in value.items()})
    if not isinstance(value, list) or not value or any(value.count(each) > 1 for each in value):
        raise ValueError("must be a list of different values, or a range with low, first and high")
    return value


def _space_or_name(value: Any) -> Space | str:
    """A space, or the name of one."""
    return value if isinstance(value, str) and value else _space(value)


# Any: pydantic then writes each value by its own type
Spaces = Mapping[str, Annotated[Any, PlainValidator(_space)]]


class Contender(Settings):
    """An optimizer with its settings; settings are named by their path in a run's configuration.

    Attributes:
        title: Name in tables and pictures.
        optimizer: Name of the optimizer in train.py.
        cost: Time of an epoch, relative to Adam's, for the estimate of hours.
        start_seconds: Time of a run before its second step, most of it compilation, for the estimate of hours.
        space: The space of each setting that is searched, or a space's name.
        fixed: Settings that are not searched.
        preset: Published settings, which depend on the length of a run and are not searched.
        tuned_as: Another contender, whose tuned values it takes; the two differ only in `fixed`.
    """

    title: str
    optimizer: Literal["thor", "momentum", "adam", "adafactor", "muon", "soap"]
    cost: Positive
    start_seconds: NonNegative
    space: Mapping[str, Annotated[Any, PlainValidator(_space_or_name)]] = {}
    fixed: Mapping[str, Any] = {}
    preset: Literal["paper"] | None = None
    tuned_as: str | None = None

    @model_validator(mode="after")
    def _tuned_once(self) -> Contender:
        if (self.tuned_as is None) != bool(self.space):
            raise ValueError("needs either a space to search, or tuned_as, whose values it takes")
        return self


class Small(Settings):
    """What replaces a task's own settings in a check that the program works."""

    examples: Count
    settings: Mapping[str, Any] = {}


class Goals(Settings):
    """Goals of a contender: upper limits of its costs to the target, as shares of the lowest cost of others.

    At equal budget it is to end no worse than any first-order optimizer.

    Attributes:
        contender: Its name.
        epochs, seconds: Shares of the costs of those that set the target; seconds without compiling.
        seconds_of_all, with_compiling_of_all: Shares of the costs of all first-order optimizers.
    """

    contender: str
    epochs: Positive | None = None
    seconds: Positive | None = None
    seconds_of_all: Positive | None = None
    with_compiling_of_all: Positive | None = None

    @property
    def limits(self) -> dict[str, tuple[float | None, float | None]]:
        """For each cost, the shares of those that set the target and of all first-order optimizers."""
        return {
            "epochs": (self.epochs, None),
            "seconds": (self.seconds, self.seconds_of_all),
            "with_compiling": (None, self.with_compiling_of_all),
        }


class Task(Settings):
    """A network, its data and its metric.

    Attributes:
        title: Title of tables and pictures.
        metric: Name of the metric on the test set, as in the runs' metrics files.
        epochs: The full schedule.
        examples: Training examples.
        seconds_per_epoch: Time of Adam's epoch on one core, for the estimate of hours.
        settings: Settings of every run, by path.
        spaces: Spaces that contenders name.
        target: Value that is to be reached; by default set by the trials of `target.set_by`.
        quick: What replaces the settings with --quick.
        goals: What is aimed at; a table has in bold what is missed.
    """

    title: str
    metric: Literal["test_error", "test_accuracy", "test_loss"]
    epochs: Count
    examples: Count
    seconds_per_epoch: Positive
    settings: Mapping[str, Any]
    spaces: Spaces
    target: float | None = None
    quick: Small
    goals: Goals | None = None

    @model_validator(mode="after")
    def _has_a_batch_size(self) -> Task:
        size = self.settings.get("batch_size")
        if type(size) is not int or not 1 <= size <= self.examples:
            raise ValueError(f"settings.batch_size must be 1 to {self.examples} (examples), and is {size!r}")
        return self

    @property
    def higher_is_better(self) -> bool:
        """True if the metric is an accuracy."""
        return self.metric == "test_accuracy"

    def goals_of(self, contender: str) -> Goals | None:
        """The goals of a contender, if it has some."""
        return self.goals if self.goals is not None and self.goals.contender == contender else None

    @property
    def steps_per_epoch(self) -> int:
        """Training steps in an epoch."""
        return int(self.examples // self.settings["batch_size"])


class Target(Settings):
    """How a task's target is found: the best final value of some contenders' trials, loosened.

    Attributes:
        set_by: Names of the contenders.
        slack: Share of the error or loss by which their best value is loosened.
    """

    set_by: Annotated[list[str], Field(min_length=1)]
    slack: Share


class Quick(Settings):
    """The size of --quick."""

    epochs: Count
    trials: Count
    test_seeds: Annotated[list[int], Field(min_length=1)]
    tasks: Annotated[list[str], Field(min_length=1)]
    contenders: Annotated[list[str], Field(min_length=1)]


class Rules(Settings):
    """All rules.

    Attributes:
        trials: Runs in which each contender is tuned on each task.
        search_seed: Seed of the quasi-random sequence's scrambling.
        tuning_seed: Seed of all trials.
        test_seeds: Seeds of the runs that count.
        target: How targets are found.
        spaces: Spaces that contenders name, for all tasks.
        contenders, tasks: By name, which is also the name of their folders.
        quick: The size of --quick.
    """

    trials: Count
    search_seed: Annotated[int, Field(ge=0)]
    tuning_seed: Annotated[int, Field(ge=0, lt=2**32)]
    test_seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1)]
    target: Target
    spaces: Spaces = {}
    contenders: Mapping[str, Contender]
    tasks: Mapping[str, Task]
    quick: Quick

    @model_validator(mode="after")
    def _seeds(self) -> Rules:
        for name, seeds in (("test_seeds", self.test_seeds), ("quick.test_seeds", self.quick.test_seeds)):
            if len(set(seeds)) < len(seeds):  # one run would count several times
                raise ValueError(f"{name} must differ, and are {seeds}")
            if self.tuning_seed in seeds:
                raise ValueError(f"{name} must not have {self.tuning_seed}, with which everything is tuned")
        return self

    @model_validator(mode="after")
    def _names(self) -> Rules:
        named = [("target.set_by", self.target.set_by), ("quick.contenders", self.quick.contenders)]
        for where, names in named:
            check_names(where, names, self.contenders)
        check_names("quick.tasks", self.quick.tasks, self.tasks)
        for name, contender in self.contenders.items():
            if contender.tuned_as is not None:
                searched = [other for other, each in self.contenders.items() if each.tuned_as is None]
                check_names(f"contenders.{name}.tuned_as", [contender.tuned_as], searched)
            for task, values in self.tasks.items():
                if values.goals is not None:
                    check_names(f"tasks.{task}.goals.contender", [values.goals.contender], self.contenders)
                for path, space in contender.space.items():
                    if isinstance(space, str) and space not in values.spaces and space not in self.spaces:
                        known = ", ".join([*values.spaces, *self.spaces])
                        raise ValueError(
                            f"contenders.{name}.space.{path} = {space!r}: task {task} has no such space, only {known}"
                        )
        return self

    def searched_as(self, contender: str) -> str:
        """The contender whose trials tune this one."""
        return self.contenders[contender].tuned_as or contender

    def tuned(self, task: str, names: Sequence[str]) -> list[str]:
        """Those that are tuned on a task for some contenders, in the rules' order; what sets the target always is."""
        setters = [] if self.tasks[task].target is not None else self.target.set_by
        needed = {self.searched_as(name) for name in [*names, *setters]}
        return [name for name in self.contenders if name in needed]

    def space(self, task: str, contender: str) -> dict[str, Space]:
        """The space of each setting of a contender on a task; of its own, or of the one that it is tuned as."""
        spaces = {**self.spaces, **self.tasks[task].spaces}
        own = self.contenders[self.searched_as(contender)].space
        return {path: spaces[space] if isinstance(space, str) else space for path, space in own.items()}

    def made_quick(self) -> Rules:
        """The same rules for small runs that check that the program works."""
        tasks = {
            name: task.model_copy(
                update={
                    "title": f"{task.title} (--quick: no result)",
                    "epochs": self.quick.epochs,
                    "examples": task.quick.examples,
                    "settings": {**task.settings, **task.quick.settings},
                }
            )
            for name, task in self.tasks.items()
        }
        setters = [name for name in self.target.set_by if name in self.quick.contenders]
        target = self.target.model_copy(update={"set_by": setters or self.quick.contenders[:1]})
        kept = {"trials": self.quick.trials, "test_seeds": self.quick.test_seeds}
        return self.model_copy(update={**kept, "tasks": tasks, "target": target})


def check_names(where: str, names: list[str], known: Any) -> None:
    """Raise ValueError if a name is not known, or is given twice."""
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: {name!r} must be one of {', '.join(known)}")
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name!r} is given twice")


def load(path: Path) -> Rules:
    """Read a rules file; UserError with one line for everything that is wrong."""
    try:
        return Rules.model_validate(read_yaml(path))
    except ValidationError as error:
        lines = "\n       ".join(_explain(detail) for detail in error.errors())
        raise UserError(f"{path}: {lines}") from None


def _explain(detail: ErrorDetails) -> str:
    """One line for an invalid entry: name, value, and what is allowed."""
    name = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "missing":
        return f"{name}: is needed"
    if detail["type"] == "extra_forbidden":
        return f"{name}: no such key"
    if detail["type"] == "value_error":
        return f"{name}: {message}" if name else message
    return f"{name} = {detail['input']!r}: must be {message}"
