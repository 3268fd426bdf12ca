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
from scripts.settings.optimizer_sections import OPTIMIZER_SECTIONS, refuse_unused, uses
from scripts.settings.train_settings import TrainSettings
from thor.runtime.errors import UserError

# Settings that may change when a run is resumed: they do not affect the training's numbers.
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
    "data.ranks",  # batch_size counts all ranks together
    "thor.grad_worker_fraction",  # who makes which inverse
    "thor.per",
)

# Usual names of other programs, and the last part of the setting's key here.
_OTHER_NAMES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "model": "network",
    "arch": "network",
    "dataset": "data.name",
}

_FREE_FORM = "network_options"  # arguments of the network's factory, where None is a value


class _Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-3 as a number (YAML 1.1 requires 1.0e-3) and refuses duplicate keys."""

    yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a duplicate key, of which YAML would silently keep the last value."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add((key.tag, str(key.value)))
        return node


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes the text 1e-3, so that `_Loader` reads it as a text."""

    yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()}


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def load_config(path: Path | None, overrides: Sequence[str] = (), of_others: Sequence[str] = ()) -> TrainSettings:
    """Read settings from a file (or the defaults) and apply `--key value` overrides.

    UserError for an override in the section of an optimizer that is not used, unless ``of_others`` has the section:
    then another run of the same program uses it.
    """
    values, given = read_yaml(path) if path else {}, list(parse_overrides(overrides))
    for key, value in given:
        _assign(values, key, value)
    settings = validate(values)
    refuse_unused(settings, [key for key, _ in given], of_others)
    return settings


def read_yaml(path: Path, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a YAML file, merged over those of its `base` files.

    Args:
        path: The file. Its key `base` is a file or a list of files, relative to it; later ones override earlier ones.
        children: The files that lead to this one through `base`, to detect a cycle.
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
    """Merge two nested mappings; values of ``above`` override those of ``below``."""
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
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date such as 2001-99-99
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold `key: value` lines")
    # a section without lines is None in YAML; it sets nothing
    return {key: value for key, value in values.items() if value is not None or _section([key]) is None}


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of `--key value` and `--key=value`; values are parsed as YAML."""
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
    """Validate settings; UserError with one line for each invalid one."""
    try:
        return TrainSettings.model_validate(values)
    except ValidationError as error:
        optimizer = values.get("optimizer")
        chosen = optimizer if optimizer in OPTIMIZER_SECTIONS else TrainSettings().optimizer
        lines = {_location(detail): _explain(detail, chosen) for detail in reversed(error.errors())}
        raise UserError("\n       ".join(reversed(lines.values()))) from None


def resolved(settings: TrainSettings) -> dict[str, Any]:
    """All settings that a run uses, as plain values, without the sections of other optimizers."""
    values = settings.model_dump(mode="json")
    for section in OPTIMIZER_SECTIONS:
        values[section] = {name: value for name, value in values[section].items() if uses(settings, section, name)}
    return {key: value for key, value in values.items() if key not in OPTIMIZER_SECTIONS or value}


def save_config(settings: TrainSettings, path: Path) -> None:
    """Write the resolved settings as YAML."""
    write_atomically(path, yaml.dump(_without_none(resolved(settings)), Dumper=_Dumper, sort_keys=False))


def differences(old: TrainSettings, new: TrainSettings, also: Container[str] = ()) -> list[str]:
    """The settings that differ and affect a run's numbers, as `key: old -> new`.

    Args:
        old: Settings of the run.
        new: Settings to compare with.
        also: Further keys to compare, of those that may change when a run is resumed.
    """
    before, after = dict(_flatten(resolved(old))), dict(_flatten(resolved(new)))
    return [
        f"{key}: {_displayed(key, before)} -> {_displayed(key, after)}"
        for key in sorted(before.keys() | after.keys())
        if _displayed(key, before) != _displayed(key, after) and (key in also or key not in _FREE_TO_CHANGE)
    ]


def _displayed(key: str, values: dict[str, Any]) -> Any:
    """A setting's value for display; an absent argument of the network's factory is not the value None."""
    return values.get(key, "left out" if key.startswith(f"{_FREE_FORM}.") else None)


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested mappings; UserError if a parent has a plain value."""
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents, start=1):
        inner = values.get(parent)
        if inner is not None and not isinstance(inner, dict):
            name = ".".join(parents[:depth])
            part = key.removeprefix(f"{name}.")
            whole = f"--{name} '{{{part}: {value}, ...}}'"
            raise UserError(f"--{key}: {name} is {inner!r} here, and has no parts; give it whole: {whole}")
        if inner is None:  # absent, or a section without lines
            inner = values[parent] = {}
        values = inner
    values[last] = value


def _location(detail: ErrorDetails) -> str:
    """The dotted key of a validation error."""
    return ".".join(str(part) for part in detail["loc"])


def _explain(detail: ErrorDetails, optimizer: str) -> str:
    """One line for an invalid setting: name, value, and allowed values; ``optimizer`` is the chosen one."""
    name = _location(detail)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(name, optimizer)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "missing":
        return f"{name}: is needed"
    if detail["type"] in ("model_type", "dict_type"):
        own = _section([optimizer])
        instead = f"; or set {optimizer}.{name}" if own and name in own.model_fields else ""
        return f"{name} = {detail['input']!r}: must be a block of settings (key: value){instead}"
    if detail["type"] == "value_error" and (not name or isinstance(detail["input"], dict)):
        return f"{name}: {message}" if name else message  # concerns several settings of a section
    if detail["type"] == "value_error":
        return f"{name} = {detail['input']!r}: {message}"
    return f"{name} = {detail['input']!r}: must be {message}"


def _unknown_key(name: str, optimizer: str) -> str:
    """Message for an unknown key: the nearest known key, else all keys of its section."""
    parent, _, last = name.rpartition(".")
    block = _section(parent.split(".") if parent else [])
    known = list(block.model_fields) if block else []
    wanted = _OTHER_NAMES.get(last, last)
    near = f"{parent}.{wanted}" if wanted in known and parent else wanted if wanted in known else None
    near = near or _in_other_sections(wanted, optimizer) or _similar(parent, last, known, optimizer)
    if near:
        return f"unknown key {name}: did you mean {near}?"
    hint = f"known are {', '.join(known)}" if parent else "docs/reference/settings.md lists all settings"
    return f"unknown key {name}: {hint}"


def _in_other_sections(wanted: str, optimizer: str) -> str | None:
    """The first key that ends with this name, those of the chosen optimizer before others; None if there is none."""
    keys = [key for key, _ in _flatten(TrainSettings().model_dump())]
    keys.sort(key=lambda key: not key.startswith(f"{optimizer}."))
    return next((key for key in keys if f".{key}".endswith(f".{wanted}")), None)


def _similar(parent: str, last: str, known: Sequence[str], optimizer: str) -> str | None:
    """The key with the most similar last part: in its own section, or for a key without one in a section too."""
    places = {key: f"{parent}.{key}" if parent else key for key in known}
    if not parent:
        for section in (optimizer, "data"):
            block = _section([section])
            places = {key: f"{section}.{key}" for key in (block.model_fields if block else ())} | places
    found = difflib.get_close_matches(last, list(places), n=1)
    return places[found[0]] if found else None


def _section(path: Iterable[str]) -> type[BaseModel] | None:
    """The settings class at a dotted key; None if the key is not a section."""
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
    """Yield the dotted keys and plain values of nested mappings."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings without None values, except in the arguments of the network's factory."""
    return {
        key: _without_none(value) if isinstance(value, dict) and key != _FREE_FORM else value
        for key, value in values.items()
        if value is not None
    }
