"""Values of command-line options, read and checked: a message has the option, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path

from first_order.checks import check_int, number
from thor.profile.crossing import check_candidates
from thor.runtime.errors import UserError


def counts(name: str, text: str) -> list[int]:
    """Integers of at least 1 from a text such as 8,64,256, ascending, each once."""
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"{name} {text!r}: give numbers with commas between them, as in 8,64,256") from None
    return [check_int(name, value, 1) for value in values]


def fractions(name: str, text: str) -> list[float]:
    """Numbers from a text such as 0.5,0.125, ascending, each once."""
    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UserError(f"{name} {text!r}: give numbers with commas between them, as in 0.5,0.125") from None


def block_sizes(name: str, text: str) -> list[int]:
    """At least two block sizes from a text such as 1,16,32,64, ascending, each once."""
    try:
        return check_candidates([int(part) for part in text.split(",")])
    except ValueError:
        raise UserError(f"{name} {text!r}: give at least two different positive integers, as in 1,16,32,64") from None


def shape(name: str, text: str) -> tuple[int, ...]:
    """The shape of a batch from a text such as 8,3,224,224."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise UserError(f"{name} {text!r}: give batch,channels,... as positive integers, as in 8,3,224,224")
    return sizes


def share(name: str, value: float) -> float:
    """A number in (0, 1)."""
    if not 0 < value < 1:
        raise UserError(f"{name} must lie between 0 and 1, but got {value}")
    return value


def positive(name: str, value: float) -> float:
    """A finite number greater than 0."""
    return number(name, value, 0.0, open_low=True)


def not_negative(name: str, value: float) -> float:
    """A finite number of at least 0."""
    return number(name, value, 0.0)


def budget(name: str, value: float) -> float:
    """Seconds, more than 0; infinity is no limit."""
    if not value > 0:
        raise UserError(f"{name} must be greater than 0 seconds, but got {value}")
    return value


def json_with_picture(name: str, path: Path) -> Path:
    """A file that ends in .json, whose picture gets the same name with .png."""
    if path.suffix != ".json":
        raise UserError(f"{name} {path}: give a name that ends in .json; the picture is written beside it")
    return path


def profile_with_picture(name: str, path: Path) -> Path:
    """A profile's file, which may end in anything but .png, the ending of its picture."""
    if path.suffix == ".png":
        raise UserError(f"{name} {path}: the picture is written beside the profile; give a name that ends in .json")
    return path


def one_of(name: str, text: str, allowed: tuple[str, ...]) -> str:
    """The allowed name that a text means, in small letters or capitals."""
    names = {each.lower(): each for each in allowed}
    if text.lower() not in names:
        raise UserError(f"{name} {text}: must be one of {', '.join(allowed)}")
    return names[text.lower()]
