"""A task's runs in their order, with a bench that trains nothing."""

import pytest
from rich.console import Console

from scripts.convergence import rules
from scripts.convergence.bench import Bench
from scripts.convergence.measures import NoTargetError
from scripts.convergence.study import Study
from scripts.convergence.taken import NOTHING, Taken
from tests.scripts.convergence.made import broken, run

FULL = rules.load(rules.DEFAULT).model_copy(update={"trials": 3, "test_seeds": [1, 2]})
SETTERS = FULL.model_copy(update={"target": FULL.target.model_copy(update={"set_by": ["adam"]})})


class Made(Bench):
    """Gives each run the value that a function makes of its folder and settings; None is a run that is not finished."""

    def __init__(self, value):
        super().__init__(1, Console(quiet=True))
        self.value, self.asked, self.done = value, [], set()

    def run_all(self, jobs):
        left = [job for job in jobs if job.known is None]
        self.asked += [(job.folder.parent.name, job.folder.name, job.settings) for job in left]
        self.done |= {job.folder for job in left}
        self.pace.done += len(jobs) - len(left)
        return [self.value(job) if job.known is None else job.known for job in jobs]

    def read(self, job):
        return self.value(job) if job.folder in self.done else None

    @property
    def names(self):
        return [f"{contender}/{name}" for contender, name, _ in self.asked]


def by_trial(*trials, test=(9.0, 1.0)):
    """Trials have these values, and all others `test`."""

    def value(job):
        seed, name = job.settings.seed, job.folder.name
        values = trials[int(name.removeprefix("trial-"))] if name.startswith("trial") else test
        return broken(seed) if values is None else run(seed, values)

    return value


def study(bench, names, fixed=SETTERS, folder="out", timed=False, taken=NOTHING):
    return Study(fixed, "autoencoder", names, rules.Path(folder), bench, timed, taken)


def test_both_comparisons_take_their_own_trial_and_seeds_take_turns():
    """The second trial is the first at the target, the first one ends best."""
    bench = Made(by_trial([9.0, 9.0, 9.0, 4.0], [9.0, 4.0, 4.0, 4.05], None))
    found = study(bench, ["adam", "thor", "thor_stop"]).do()
    assert bench.names[:6] == [f"{name}/trial-{index}" for name in ("adam", "thor") for index in range(3)]
    turn = [f"{name}/{kind}" for name in ("adam", "thor", "thor_stop") for kind in ("to-target", "equal-budget")]
    assert bench.names[6:] == [f"{name}-1" for name in turn] + [f"{name}-2" for name in turn]
    assert found.target == pytest.approx(4.08) and found.set_by == "adam"
    settings = {name: each for (_, _, each), name in zip(bench.asked, bench.names, strict=True)}
    second, first = settings["thor/trial-1"], settings["thor/trial-0"]
    stop, budget = settings["thor_stop/to-target-2"], settings["thor_stop/equal-budget-1"]
    assert (stop.thor.learning_rate, stop.epochs, stop.seed) == (second.thor.learning_rate, second.epochs, 2)
    assert stop.thor.refresh != second.thor.refresh and second.epochs < 10
    assert (budget.thor.learning_rate, budget.epochs, budget.seed) == (first.thor.learning_rate, 10, 1)
    assert [len(each.trials) for each in found.contenders.values()] == [3, 3, 0]
    for each in found.contenders.values():
        assert [len(each.to_target), len(each.equal_budget)] == [2, 2]
    assert bench.pace.total == len(bench.asked) == 18


def test_equal_settings_are_trained_once_and_count_in_both_comparisons():
    bench = Made(by_trial([9.0, 4.0], [9.0, 9.0], [9.0, 9.0]))
    found = study(bench, ["adam"]).do()
    assert bench.names[3:] == ["adam/to-target-1", "adam/to-target-2"] and bench.pace.total == 5
    adam = found.contenders["adam"]
    assert adam.equal_budget == adam.to_target and len(adam.to_target) == 2


def test_a_short_trial_that_ends_best_gets_the_full_length():
    bench = Made(by_trial([9.0, 9.0], [9.0, 4.0], [9.0, 9.0]))
    study(bench, ["adam"]).do()
    short = bench.asked[1][2]
    budget = next(each for _, name, each in bench.asked if name == "equal-budget-1")
    assert short.epochs < budget.epochs == 10 and short.adam == budget.adam


def test_setters_are_tuned_but_not_tested_if_they_take_no_part():
    bench = Made(by_trial([9.0, 4.0], [9.0, 9.0], [9.0, 9.0]))
    found = study(bench, ["thor_stop"], FULL).do()
    assert {name.split("/")[0] for name in bench.names[:12]} == {"momentum", "adam", "adafactor", "thor"}
    assert {name.split("/")[0] for name in bench.names[12:]} == {"thor_stop"}
    assert found.contenders["adam"].trials and not found.contenders["adam"].to_target
    given = FULL.tasks["autoencoder"].model_copy(update={"target": 5.0})
    fixed = FULL.model_copy(update={"tasks": {**FULL.tasks, "autoencoder": given}})
    bench = Made(by_trial([9.0, 4.0], [9.0, 9.0], [9.0, 9.0]))
    assert study(bench, ["thor"], fixed).do().target == 5.0 and {n.split("/")[0] for n in bench.names} == {"thor"}


def test_seconds_are_those_of_one_more_run_where_there_is_one():
    """A first seed that broke down is not timed, and what another command has timed is taken over."""

    def value(job):
        name = job.folder.name
        assert job.in_one_go == (name == "timing")
        if name == "to-target-1" and job.folder.parent.name == "thor":
            return broken(1)
        return run(job.settings.seed, [9.0, 4.0, 4.0, 4.0], compiling=7.0 if name == "timing" else 1.0)

    bench = Made(value)
    found = study(bench, ["adam", "thor"], timed=True).do()
    timings = [
        (name, each.seed) for name, (_, _, each) in zip(bench.names, bench.asked, strict=True) if "timing" in name
    ]
    assert timings == [("adam/timing", 1), ("thor/timing", 2)] and bench.pace.total == len(bench.asked)
    assert [run.points[0].compiling for run in found.contenders["adam"].to_target] == [7.0, 7.0]
    assert [run.broke_down for run in found.contenders["thor"].to_target] == [True, False]
    again = study(bench, ["adam", "thor"]).do()
    assert len([name for name in bench.names if "timing" in name]) == 2
    assert again == found


def test_a_report_of_unfinished_runs():
    """Contenders whose search is not finished are left out; without the setters' search there is no target."""
    whole = by_trial([9.0, 4.0], [9.0, 9.0], [9.0, 9.0])

    def value(job):
        unfinished = (
            job.folder.parent.name == "thor" or job.folder.name.endswith("-2") and "trial" not in job.folder.name
        )
        return None if unfinished else whole(job)

    found = study(Made(value), ["adam", "thor", "thor_stop"]).do()
    assert list(found.contenders) == ["adam", "thor"] and found.contenders["thor"].trials == []
    assert [each.seed for each in found.contenders["adam"].to_target] == [1]
    with pytest.raises(NoTargetError, match="autoencoder: adam has not finished all trials"):
        study(Made(lambda job: None), ["adam"]).do()


def test_runs_that_are_taken_over_are_not_trained():
    """A contender that is added is trained alone; a search that differs has its runs with test seeds anew."""
    value = by_trial([9.0, 9.0, 9.0, 4.0], [9.0, 4.0, 4.0, 4.05], None)
    first = study(Made(value), ["adam", "thor"], timed=True).do()
    bench = Made(value)
    again = study(bench, ["adam", "thor", "thor_stop"], timed=True, taken=Taken(first.contenders, first.target)).do()
    turns = [f"to-target-{seed}" if half else f"equal-budget-{seed}" for seed in (1, 2) for half in (True, False)]
    assert bench.names == [f"thor_stop/{each}" for each in (*turns, "timing")]
    assert bench.pace.done + len(bench.asked) == bench.pace.total
    assert {name: again.contenders[name] for name in first.contenders} == first.contenders
    adam = first.contenders["adam"]
    other = adam.trials[0].model_copy(update={"values": {**adam.trials[0].values, "adam.beta1": 0.5}})
    changed = adam.model_copy(update={"trials": [other, *adam.trials[1:]]})
    bench = Made(value)
    study(bench, ["adam"], taken=Taken({"adam": changed}, first.target)).do()
    assert bench.names == ["adam/trial-0", *(f"adam/{each}" for each in turns)]


def test_runs_to_another_target_are_not_taken_over():
    """Another trial may be the fastest to it."""
    value = by_trial([9.0, 9.0, 9.0, 4.0], [9.0, 4.0, 4.0, 4.05], None)
    first = study(Made(value), ["adam", "thor"]).do()
    bench = Made(value)
    study(bench, ["adam", "thor"], taken=Taken(first.contenders, 0.5 * first.target)).do()
    assert {name.split("/")[1] for name in bench.names} == {"to-target-1", "to-target-2"}


def test_a_timing_that_breaks_down_leaves_the_seconds_that_there_are():
    def value(job):
        return run(job.settings.seed, []) if job.folder.name == "timing" else whole(job)

    whole = by_trial([9.0, 4.0], [9.0, 9.0], [9.0, 9.0])
    found = study(Made(value), ["adam"], timed=True).do()
    assert not any(each.timed_alone for each in found.contenders["adam"].to_target)


def test_of_an_unfinished_search_only_the_trials_before_the_first_gap_are_told():
    """The first of them is the first guess, by which the others are judged."""
    bench = Made(lambda job: None if job.folder == rules.Path("out/thor/trial-0") else run(job.settings.seed, [4.0]))
    found = study(bench, ["thor"]).do()
    assert found.contenders["thor"].trials == []
    bench = Made(lambda job: None if job.folder == rules.Path("out/thor/trial-1") else run(job.settings.seed, [4.0]))
    assert [trial.run.seed for trial in study(bench, ["thor"]).do().contenders["thor"].trials] == [0]
