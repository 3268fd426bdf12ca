"""The table says what was chosen and what to beware of; the picture shows it."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from tests.support.profiles import factor, profile, timing
from thor.profile import report


def shown(made, **options):
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    report.show(made, console, **options)
    return console.export_text()


def row(text, dim):
    """The cells of the first table's line for a candidate."""
    line = next(line for line in text.splitlines() if line.startswith("│") and line.split("│")[1].strip() == str(dim))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_table_has_every_candidate_and_names_the_choice():
    made = profile()
    text = shown(made, interval=50)
    crossing = made.crossing()
    assert f"block size: {crossing.chosen}" in text
    assert f"the curves cross at {crossing.dim:.0f}, {crossing.share:.2f}" in text
    assert row(text, 4)[:4] == ["4", "0.50", "0.50", f"{made.performance()[1]:.3f}"]
    assert row(text, 16)[1:3] == ["0.67", "0.83"]  # channel-major, position-major
    assert row(text, 16)[-2] == "200 us"  # 10 ms every 50 steps
    assert row(text, 64)[4] == "2.72 ms ±5%"
    assert "a refresh every 50 steps; kept *: position-major" in text
    assert "tests.support.networks:Tiny: 3 layers, 6 factors, largest 60" in text
    assert "CPU (A Processor, 2 cores), MindSpore 2.10.0, inverse lapack" in text


def test_without_convolutions_there_is_one_order():
    layers = [(factor("x", "a", 60, [0.9, 0.5, 0.2, 0.0]), factor("x", "g", 20, [0.8, 0.005, 0.001, 0.0]))]
    assert "kept *" not in shown(profile(layers=layers))


def test_the_splits_are_compared_by_error_and_cosine():
    text = shown(profile())
    assert "0.650 | 0.600" in text and "0.065 | 0.800" in text
    assert "Trust the error most, then the cosine" in text
    assert "block+rank" not in shown(profile(details=False))


def test_synthetic_data_is_warned_of():
    assert "synthetic" not in shown(profile())
    text = shown(profile(source="synthetic"))
    assert "synthetic data: times and memory are right, losses are those of noise, not of your data" in text


def test_a_flat_curve_is_not_taken_for_a_fast_one():
    text = " ".join(shown(profile()).split())
    assert "launch floor 100 us" in text
    assert "up to 16 one inverse costs what its call costs" in text  # 1e-4 + 16^3 1e-8 is within 1.5 times 1e-4
    assert "costs what its call costs" not in shown(profile(call=lambda n: 1e-6 * n**2))


def test_a_modelled_refresh_is_marked():
    assert "~" not in shown(profile())
    made = profile()
    made.refreshes[64].timing = timing(0.02, repeats=0)
    text = shown(made)
    assert row(text, 64)[5] == "~20 ms" and row(text, 16)[5] == "10 ms"
    assert "~ modelled from the time of a block: the refresh was not measured there (memory limit)" in text


def test_the_per_layer_plan_and_a_budget_that_nothing_keeps():
    assert "per-layer plan: blocks of 1 to 64" in shown(profile())
    text = " ".join(shown(profile(), budget=1e-9).split())
    assert "per-layer plan: no plan refreshes within budget = 1e-09 s" in text
    assert "block size: " in text


@pytest.mark.parametrize(
    ("call", "word"), [(lambda n: 1e-4, "performance exceeds kept"), (lambda n: 1e-6 * 8**n, "cross at")]
)
def test_curves_with_and_without_a_crossing_are_told_apart(call, word, tmp_path):
    layers = [(factor("x", "a", 60, [0.9, 0.8, 0.2]), factor("x", "g", 20, [0.8, 0.005, 0.001]))]
    made = profile(layers=layers, dims=[1, 4, 16], call=call)
    assert word in " ".join(shown(made).split())
    report.draw(made, tmp_path / "p.png")


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 us"), (2e-9, "0.002 us"), (1.0, "1 s")]
)
def test_durations_are_readable(seconds, text):
    assert report.duration(seconds) == text


def test_the_picture_has_both_panels_and_names_the_choice(tmp_path, monkeypatch):
    """Not blank: ink in each half of the canvas, in the colours of both curves."""
    path = tmp_path / "sub" / "p.png"
    titles = []
    monkeypatch.setattr(
        Axes,
        "set_title",
        lambda self, text, *a, __old=Axes.set_title: titles.append(text) or __old(self, text, *a),
    )
    report.draw(profile(), path)
    image = matplotlib.image.imread(path)[:, :, :3]
    assert image.shape[0] > 500 and image.shape[1] > 1200
    assert titles[0] == f"chosen block size: {profile().crossing().chosen}"
    half = image.shape[1] // 2
    for part in (image[:, :half], image[:, half:]):
        dark = (part.min(-1) < 0.5).mean()
        assert 0.005 < dark < 0.9
    for color in (report.KEPT_COLOR, report.TIME_COLOR):
        rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        assert (np.abs(image[:, :half] - rgb).max(-1) < 0.02).sum() > 300


def test_many_factors_are_drawn_with_some_of_their_names(tmp_path):
    layers = [
        (factor(f"layer{i}", "a", 60, [0.9, 0.5, 0.2, 0.0]), factor(f"layer{i}", "g", 20, [0.8, 0.1, 0.0, 0.0]))
        for i in range(60)
    ]
    report.draw(profile(layers=layers), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000
