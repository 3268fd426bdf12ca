"""Configurations: YAML files, `--key value` on the command line, and errors that say what is allowed."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scripts.common.atomic_write import write_atomically
from scripts.settings.train_settings import THOR_KEYS_FOR_ADAM, TrainSettings
from thor.runtime.errors import UserError

OPTIMIZER_SECTIONS = ("thor", "momentum", "adam", "adafactor")

# What may differ between a run and its continuation: it changes no number of the training.
_FREE_TO_CHANGE = (
    "out",
    "checkpoint_every",
    "keep",
    "eval_every",
    "eval_every_steps",
    "eval_batch_size",
    "log_every",
    "tensorboard",
    "data.folder",
    "data.workers",
    "data.rank",
    "data.ranks",  # batch_size is of all ranks together
)

_FREE_FORM = "network_options"  # arguments of a network's factory, in which None is a value


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number (YAML 1.1 wants 1.0e-3, and reads a text otherwise), and no key stands twice."""

    yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a key that stands there twice: of two blocks of one name YAML would keep the last, and say nothing."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add((key.tag, str(key.value)))
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> TrainSettings:
    """The settings of a file (or the defaults), with `--key value` pairs on top."""
    values = read_yaml(path) if path else {}
    for key, value in parse_overrides(overrides):
        _assign(values, key, value)
    return validate(values)


def read_yaml(path: Path, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a YAML file, on top of those of the files that it names as `base`.

    `base: other.yaml` or a list of files, relative to the file itself; of several, the later ones win.
    """
    values = _read_one(path)
    bases = values.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) and "\0" not in base for base in bases):
        raise UserError(f"{path}: base = {bases!r}: must be a file, or a list of files")
    family = (*children, path.resolve())
    merged: dict[str, Any] = {}
    for base in bases:
        parent = path.parent / base
        if parent.resolve() in family:
            raise UserError(f"{path}: base {base} is based on this file itself")
        merged = _merged(merged, read_yaml(parent, family))
    return _merged(merged, values)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two mappings, block by block; where both have a value, it is that above."""
    result = dict(below)
    for key, value in above.items():
        mine = result.get(key)
        result[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return result


def _read_one(path: Path) -> dict[str, Any]:
    """The mapping in one YAML file."""
    try:
        values = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: a date that is none, as 2001-99-99
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold `key: value` lines")
    # a block whose lines are all comments is one that says nothing
    return {key: value for key, value in values.items() if value is not None or _section([key]) is None}


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Pairs of `--key value` and `--key=value`; values are read as YAML."""
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--") or option == "--":
            raise UserError(f"unexpected argument {option!r}: settings are given as --key value")
        key, equals, text = option[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"--{key} needs a value")
            text = rest.pop(0)
        try:
            yield key.replace("-", "_"), yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"--{key}: {text!r} is not a valid value") from None


def validate(values: dict[str, Any]) -> TrainSettings:
    """Checked settings, or an error with one line for each bad one."""
    try:
        return TrainSettings.model_validate(values)
    except ValidationError as error:
        lines = {_location(detail): _explain(detail) for detail in reversed(error.errors())}
        raise UserError("\n       ".join(reversed(lines.values()))) from None


def resolved(settings: TrainSettings) -> dict[str, Any]:
    """All settings that a run uses, as plain values: the blocks of other optimizers are left out."""
    values = settings.model_dump(mode="json")
    used = {key: value for key, value in values.items() if key not in OPTIMIZER_SECTIONS or key == settings.optimizer}
    if settings.optimizer == "thor" and settings.thor.inner == "adam":
        used["adam"] = {key: value for key, value in values["adam"].items() if key not in THOR_KEYS_FOR_ADAM}
    return used


def save_config(settings: TrainSettings, path: Path) -> None:
    """Write the resolved settings as YAML."""
    write_atomically(path, yaml.safe_dump(_without_none(resolved(settings)), sort_keys=False))


def differences(old: TrainSettings, new: TrainSettings, also: Container[str] = ()) -> list[str]:
    """The settings that matter to a run's numbers and differ, as `key: old -> new`.

    ``also`` are keys that matter to the caller, though a continuation may change them.
    """
    before, after = dict(_flatten(resolved(old))), dict(_flatten(resolved(new)))
    return [
        f"{key}: {_displayed(key, before)} -> {_displayed(key, after)}"
        for key in sorted(before.keys() | after.keys())
        if _displayed(key, before) != _displayed(key, after) and (key in also or key not in _FREE_TO_CHANGE)
    ]


def _displayed(key: str, values: dict[str, Any]) -> Any:
    """A setting's value; an argument of a network's factory that is None is not one that is left out."""
    return values.get(key, "left out" if key.startswith(f"{_FREE_FORM}.") else None)


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; on the way, a block that was given by a single value becomes a mapping."""
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents, start=1):
        inner = values.get(parent)
        if inner is not None and not isinstance(inner, dict):
            name = ".".join(parents[:depth])
            part = key.removeprefix(f"{name}.")
            whole = f"--{name} '{{{part}: {value}, ...}}'"
            raise UserError(f"--{key}: {name} is {inner!r} here, and has no parts; give it whole: {whole}")
        if inner is None:  # not there, or a block's name with nothing below it
            inner = values[parent] = {}
        values = inner
    values[last] = value


def _location(detail: ErrorDetails) -> str:
    """The dotted key of an error."""
    return ".".join(str(part) for part in detail["loc"])


def _explain(detail: ErrorDetails) -> str:
    """One line for one bad setting: name, value, and what is allowed."""
    name = _location(detail)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(name)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "missing":
        return f"{name}: is needed"
    if detail["type"] in ("model_type", "dict_type"):
        return f"{name} = {detail['input']!r}: must be a block of settings (key: value)"
    if detail["type"] == "value_error" and (not name or isinstance(detail["input"], dict)):
        return f"{name}: {message}" if name else message  # about several settings of a block
    if detail["type"] == "value_error":
        return f"{name} = {detail['input']!r}: {message}"
    return f"{name} = {detail['input']!r}: must be {message}"


def _unknown_key(name: str) -> str:
    """An unknown key, with the nearest known one or all that stand in its place."""
    parent, _, last = name.rpartition(".")
    block = _section(parent.split(".") if parent else [])
    known = list(block.model_fields) if block else []
    near = _in_other_sections(last) or difflib.get_close_matches(last, known, n=1)
    prefix = f"{parent}." if parent and near and near[0] in known else ""
    hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"
    return f"unknown key {name}: {hint}"


def _in_other_sections(last: str) -> list[str]:
    """Dotted keys of other blocks that end so."""
    keys = [key for key, _ in _flatten(TrainSettings().model_dump())]
    return [key for key in keys if key.rpartition(".")[2] == last][:1]


def _section(path: Iterable[str]) -> type[BaseModel] | None:
    """The settings class at a dotted key."""
    block: type[BaseModel] = TrainSettings
    for part in path:
        field = block.model_fields.get(part)
        found = _settings_class(field.annotation) if field else None
        if found is None:
            return None
        block = found
    return block


def _settings_class(annotation: Any) -> type[BaseModel] | None:
    """The settings class in an annotation such as `Schedule | None`."""
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values of nested mappings."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings without what is not set; what the user's own factory is given stays as it is."""
    return {
        key: _without_none(value) if isinstance(value, dict) and key != _FREE_FORM else value
        for key, value in values.items()
        if value is not None
    }
