"""Every program of examples/ runs and learns."""

import importlib

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
LINES = 65


def better(before, after):
    return after < 0.7 * before


#: of each example, whether what its main function returns shows that it has learnt
LEARNT = {
    "accumulation_by_hand": lambda found: better(*found),
    "distillation": lambda losses: losses == sorted(losses, reverse=True) and better(losses[0], losses[-1]),
    "gan": lambda found: better(*found),
    "model_with_callbacks": lambda accuracy: accuracy > 0.85,
    "physics_informed": lambda errors: errors[1] < 0.1 < 0.5 < errors[0],  # THOR's and Adam's
    "several_losses": lambda found: better(*found),
}


def test_every_example_is_known_and_short():
    assert NAMES == sorted(LEARNT)
    lengths = {name: len((FOLDER / f"{name}.py").read_text().splitlines()) for name in NAMES}
    assert all(length <= LINES for length in lengths.values()), lengths


@pytest.mark.parametrize("name", NAMES)
def test_an_example_learns(name):
    assert LEARNT[name](importlib.import_module(f"examples.{name}").main())
