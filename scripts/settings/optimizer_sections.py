"""The optimizers' sections: which of their settings a run uses, and what is said of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.settings.train_settings import OF_EIGENBASES, OF_INVERSES, THOR_KEYS_FOR_ADAM, TrainSettings
from thor.runtime.errors import UserError

OPTIMIZER_SECTIONS = ("thor", "momentum", "adam", "adafactor", "muon", "soap")

_MOST_NAMES = 4  # in a warning


def uses(settings: TrainSettings, section: str, name: str) -> bool:
    """True if a run with these settings reads the setting `section.name`."""
    if section == settings.optimizer:
        return True
    inside_thor = section == "adam" and settings.optimizer == "thor" and settings.thor.inner == "adam"
    return inside_thor and name not in THOR_KEYS_FOR_ADAM


def refuse_unused(settings: TrainSettings, keys: Iterable[str], of_others: Sequence[str] = ()) -> None:
    """Raise UserError for settings that were given on the command line and that the run would ignore.

    Args:
        settings: The run's settings.
        keys: The dotted keys that were given.
        of_others: Sections that other runs of the same program use.
    """
    lines = []
    for key in keys:
        section, _, rest = key.partition(".")
        if section not in OPTIMIZER_SECTIONS or section in of_others:
            continue
        name = rest.partition(".")[0]
        used = uses(settings, section, name) if name else any(uses(settings, section, n) for n in _names(section))
        if not used:
            lines.append(f"--{key}: optimizer = {settings.optimizer} does not use it; {_cure(settings, section, name)}")
    if lines:
        raise UserError("\n       ".join(lines))


def unused_in(settings: TrainSettings, path: Path | None) -> str | None:
    """A warning that names the settings of the YAML file that the run ignores; None if there are none.

    One file may hold the sections of several optimizers, so these settings are no error. Defaults are not named.
    """
    names = []
    for section in OPTIMIZER_SECTIONS:
        own = getattr(settings, section)
        fields = type(own).model_fields
        names += [
            f"{section}.{name}"
            for name in fields
            if name in own.model_fields_set
            and getattr(own, name) != fields[name].get_default()
            and not uses(settings, section, name)
        ]
    if not names:
        return None
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{path}: optimizer = {settings.optimizer} does not use {', '.join(names[:_MOST_NAMES])}{more}"


def _cure(settings: TrainSettings, section: str, name: str) -> str:
    """Advice for a setting that the run would ignore."""
    others = OF_EIGENBASES if settings.thor.precondition == "inverse" else OF_INVERSES
    of_other_kind = settings.optimizer == "thor" and name in others
    if name in _names(settings.optimizer) and not of_other_kind:
        instead = f"set --{settings.optimizer}.{name}"
    elif section == "adam" and settings.optimizer == "thor":
        instead = "set --thor.inner adam"
    else:
        instead = "leave it out"
    return f"{instead}, or choose --optimizer {section}"


def _names(section: str) -> list[str]:
    """The names of a section's settings."""
    return list(type(getattr(TrainSettings(), section)).model_fields)
