"""results.json, and that tables and pictures say what it says."""

import math

import matplotlib.image
import numpy as np
import pytest

from scripts.convergence import measures, picture, report, results, results_page, tables
from scripts.convergence.report import Report
from scripts.convergence.results import ContenderResult
from scripts.convergence.rules import Goals
from tests.scripts.convergence.made import ACCURACIES, ERRORS, FULL, RESULTS, broken
from thor.runtime.errors import UserError


def test_tables_by_hand():
    text = tables.of_task(FULL, "autoencoder", ERRORS)
    assert "Target: 5.000, set by the trials of Adam, loosened by 2%." in text
    lines = text.splitlines()
    assert "| Adam | 2.00 (1.00, 1.00) | 20 (1.00, 1.00) | 22 (1.00, 1.00) | 2 of 3 | - | 5.000 | 1024 |" in lines
    assert "| Muon | not reached | not reached | not reached | 1 of 3 | - | 6.000 | 1024 |" in lines
    assert (
        "| THOR | 0.50 (**0.25**, 0.25) | 5.0 (**0.25**, 0.25) | 25 (1.14, **1.14**) | 3 of 3 | 8 | 3.000 | 1024 |"
        in lines
    )
    assert "| Adam | 4.600 (4.100 to 5.500) | 4.500 | - | 1024 | 0 of 3 |" in lines
    assert "| Muon | 4.400 (4.000 to broke down) | 4.400 | - | 1024 | 1 of 3 |" in lines
    assert "| Adam | 6.000 | 4.900 | not reached | 1.00 |" in lines
    assert not any(line.startswith("| THOR | ") and line.count("|") == 6 for line in lines), "it has no trials here"
    assert "medians over seeds, seconds as the runs took them;" in text
    runs = {name: [measures.timed_by(r, r) for r in each.to_target] for name, each in ERRORS.contenders.items()}
    timed = {name: each.model_copy(update={"to_target": runs[name]}) for name, each in ERRORS.contenders.items()}
    text = tables.of_task(FULL, "autoencoder", ERRORS.model_copy(update={"contenders": timed}))
    assert "medians over seeds, seconds of one run at a time;" in text


def test_a_contender_that_always_broke_down_has_no_numbers():
    lost = ContenderResult(to_target=[broken(1), broken(2)], equal_budget=[broken(1), broken(2)])
    found = ERRORS.model_copy(update={"contenders": ERRORS.contenders | {"kfac": lost}})
    lines = tables.of_task(FULL, "autoencoder", found).splitlines()
    assert "| K-FAC | not reached | not reached | not reached | 0 of 2 | - | broke down | - |" in lines
    assert "| K-FAC | broke down | broke down | - | - | 2 of 2 |" in lines


def test_what_misses_a_goal_is_in_bold():
    """THOR needs a quarter of Adam's epochs and seconds, a bit more with compiling, and ends better."""

    def text(**goals):
        task = FULL.tasks["autoencoder"].model_copy(update={"goals": Goals(contender="thor", **goals)})
        changed = FULL.model_copy(update={"tasks": FULL.tasks | {"autoencoder": task}})
        return tables.of_task(changed, "autoencoder", ERRORS)

    reached = text(epochs=0.25, seconds=0.3, seconds_of_all=0.25, with_compiling_of_all=1.2)
    assert "**" not in reached.replace("**Autoencoder", "").replace("1000.**", "")
    missed = text(epochs=0.2, seconds=0.3, seconds_of_all=0.2, with_compiling_of_all=1.1)
    assert "| THOR | 0.50 (**0.25**, 0.25) | 5.0 (0.25, **0.25**) | 25 (1.14, **1.14**) | 3 of 3" in missed
    worse = FULL.tasks["resnet8-128"].model_copy(update={"goals": Goals(contender="adam")})
    changed = FULL.model_copy(update={"tasks": FULL.tasks | {"resnet8-128": worse}})
    assert "| Adam | 85.00% (85.00% to 85.00%) |" in tables.of_task(changed, "resnet8-128", ACCURACIES)
    muon = FULL.tasks["autoencoder"].model_copy(update={"goals": Goals(contender="muon", epochs=0.5)})
    changed = FULL.model_copy(update={"tasks": FULL.tasks | {"autoencoder": muon}})
    assert "| Muon | **not reached** | not reached |" in tables.of_task(changed, "autoencoder", ERRORS)
    adam = muon.model_copy(update={"goals": Goals(contender="adam")})
    changed = FULL.model_copy(update={"tasks": FULL.tasks | {"autoencoder": adam}})
    assert "| Adam | **4.600 (4.100 to 5.500)** |" in tables.of_task(changed, "autoencoder", ERRORS)


def test_percent_where_the_metric_is_an_accuracy():
    text = tables.of_task(FULL, "resnet8-128", ACCURACIES)
    assert "Target: 80.00%" in text and "| THOR | 90.00% (90.00% to 90.00%) | 90.00% |" in text
    figure = picture.of_task(RESULTS, "resnet8-128")
    assert figure.axes[0].get_ylabel() == "test accuracy, %"


def lines_of(axes, prefix):
    return {gid.removeprefix(prefix): line for line in axes.lines if (gid := str(line.get_gid())).startswith(prefix)}


PUBLISHED = results.read(results_page.FOLDER / results_page.DATA)
BY_TASK = [(each, name) for each in (RESULTS, PUBLISHED) for name in each.tasks]


@pytest.mark.parametrize(("made", "name"), BY_TASK)
def test_the_pictures_ends_and_crossings_are_the_tables_numbers(made, name):
    """Also those of the page of results."""
    task, found = made.rules.tasks[name], made.tasks[name]
    left, right = picture.of_task(made, name).axes
    text = tables.of_task(made.rules, name, found)
    for axes, part in ((left, "to_target"), (right, "equal_budget")):
        lines = lines_of(axes, picture.MEDIAN)
        whole = {
            contender: each
            for contender, each in found.contenders.items()
            if not all(run.broke_down for run in getattr(each, part))
        }
        assert list(lines) == list(whole)
        for contender, line in lines.items():
            runs = getattr(found.contenders[contender], part)
            final = getattr(measures, part)(task, runs, *([found.target] if part == "to_target" else [])).final.median
            if math.isfinite(final):
                end = float(np.asarray(line.get_ydata())[-1])
                assert end == picture.scaled(task, final)
                shown = f"{end:.2f}%" if task.higher_is_better else f"{end:.3f}"
                title = made.rules.contenders[contender].title
                rows = [row for row in text.splitlines() if row.startswith(f"| {title} |")]
                assert shown in rows[0 if axes is left else 1], "as the table has it"
                assert line.get_label() == title
    crossings = lines_of(left, picture.CROSSING)
    for contender, each in found.contenders.items():
        cost = measures.to_target(task, each.to_target, found.target).with_compiling
        assert (contender in crossings) == math.isfinite(cost)
        if contender in crossings:
            place = (crossings[contender].get_xdata()[0], crossings[contender].get_ydata()[0])
            assert place == (cost, picture.scaled(task, found.target))


@pytest.mark.parametrize("made", [RESULTS, PUBLISHED], ids=["made up", "published"])
def test_the_range_of_the_metric_has_the_target_and_every_end(made):
    for name, found in made.tasks.items():
        left, right = picture.of_task(made, name).axes
        low, high = left.get_ylim()
        ends = [line.get_ydata()[-1] for axes in (left, right) for line in lines_of(axes, picture.MEDIAN).values()]
        assert all(low < value < high for value in [*ends, picture.scaled(made.rules.tasks[name], found.target)])


def test_a_contender_that_always_broke_down_stands_in_the_legend():
    made = PUBLISHED
    assert all(run.broke_down for run in made.tasks["autoencoder"].contenders["kfac"].equal_budget)
    (legend,) = picture.of_task(made, "autoencoder").legends
    assert "K-FAC (broke down)" in [text.get_text() for text in legend.get_texts()]


def test_seconds_of_one_run_at_a_time_are_not_compared_with_others():
    def timed(name, alone):
        own = ERRORS.contenders[name]
        runs = [run.model_copy(update={"timed_alone": alone}) for run in own.to_target]
        return own.model_copy(update={"to_target": runs})

    names = list(ERRORS.contenders)
    mixed = ERRORS.model_copy(update={"contenders": {name: timed(name, name == names[0]) for name in names}})
    rows = [row.split(" | ") for row in tables.of_task(FULL, "autoencoder", mixed).splitlines()]
    title, other = (FULL.contenders[name].title for name in names[:2])
    seconds = {row[0].removeprefix("| "): row[2:4] for row in rows[:12] if len(row) > 6}
    assert seconds[other] == ["-", "-"] and "-" not in seconds[title]
    assert measures.timed_alone(mixed, names) == [names[0]]


def test_results_come_back_as_they_were(tmp_path):
    results.write(RESULTS, tmp_path / "results.json")
    assert results.read(tmp_path / "results.json") == RESULTS


def test_a_report_is_added_to_task_by_task(tmp_path):
    assert "Target: 80.00%" in Report(tmp_path, FULL).add("resnet8-128", ACCURACIES)
    Report(tmp_path, FULL).add("autoencoder", ERRORS)
    found = results.read(tmp_path / "results.json")
    assert list(found.tasks) == ["autoencoder", "resnet8-128"] and found.machine["cores"].isdigit()
    text = (tmp_path / "results.md").read_text()
    assert text.count("*Time to target*") == 2 and "Measured on: processor " in text
    for name in found.tasks:
        assert matplotlib.image.imread(tmp_path / f"{name}.png").shape[1] == 1400
    with pytest.raises(UserError, match=r"results\.json: was made by other rules; give another --out, or remove it"):
        Report(tmp_path, FULL.model_copy(update={"trials": 6}))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "Invalid JSON"), ("{}", "rules: Field required; remove it: run.py --report-only makes it anew")],
)
def test_a_damaged_file_is_named(text, message, tmp_path):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UserError, match=rf"results\.json: .*{message}"):
        report.Report(tmp_path, FULL)


@pytest.mark.parametrize("text", ["", "[]", '{"finished": true}', '{"finished": true, "phases": [], "refreshes": 1}'])
def test_a_damaged_summary_of_a_run_is_named(text, tmp_path):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match=r"summary\.json: no summary of a run \(.*remove the run's folder"):
        results.read_run(tmp_path, 1, "test_error")


def test_results_that_are_taken_over_are_kept_and_the_folders_own_win(tmp_path):
    other = ACCURACIES.model_copy(update={"target": 0.7})
    Report(tmp_path, FULL).add("resnet8-128", other)
    kept = Report(tmp_path, FULL, {"resnet8-128": ACCURACIES, "vit": ACCURACIES})
    kept.add("autoencoder", ERRORS)
    assert results.read(kept.path).tasks == {"autoencoder": ERRORS, "resnet8-128": other, "vit": ACCURACIES}


def test_contenders_that_were_not_asked_for_keep_their_runs_to_the_same_target(tmp_path):
    """As after a run with --only, whose setters are tuned and not tested."""
    Report(tmp_path, FULL).add("autoencoder", ERRORS)
    thor, adam = ERRORS.contenders["thor"], ERRORS.contenders["adam"]
    newer = thor.model_copy(update={"to_target": thor.equal_budget})
    setter = adam.model_copy(update={"to_target": [], "equal_budget": []})
    found = ERRORS.model_copy(update={"contenders": {"adam": setter, "thor": newer}})
    Report(tmp_path, FULL).add("autoencoder", found)
    assert results.read(tmp_path / "results.json").tasks["autoencoder"].contenders == {
        **ERRORS.contenders, "thor": newer,
    }  # fmt: skip
    other = found.model_copy(update={"target": 6.0})
    Report(tmp_path, FULL).add("autoencoder", other)
    assert results.read(tmp_path / "results.json").tasks["autoencoder"] == other, "another target is another search"


def test_runs_with_the_values_of_a_contender_that_was_searched_anew_are_dropped(tmp_path):
    thor = ERRORS.contenders["thor"]
    searched = thor.model_copy(update={"trials": ERRORS.contenders["adam"].trials})
    with_stop = ERRORS.model_copy(update={"contenders": {**ERRORS.contenders, "thor": searched, "thor_stop": thor}})
    Report(tmp_path, FULL).add("autoencoder", with_stop)
    anew = searched.model_copy(update={"trials": searched.trials[::-1]})
    Report(tmp_path, FULL).add("autoencoder", ERRORS.model_copy(update={"contenders": {"thor": anew}}))
    kept = results.read(tmp_path / "results.json").tasks["autoencoder"].contenders
    assert "thor_stop" not in kept and "adam" in kept and kept["thor"] == anew


def test_results_keep_the_machine_that_measured_them(tmp_path):
    results.write(RESULTS, tmp_path / "results.json")
    with pytest.raises(UserError, match="was measured on another machine .processor made up; here: .*another --out"):
        Report(tmp_path, FULL)
    Report(tmp_path, FULL, read_only=True).add("autoencoder", ERRORS)
    assert results.read(tmp_path / "results.json").machine == RESULTS.machine
