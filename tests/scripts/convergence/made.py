"""Results that are made up, for tests of what is drawn from them."""

from scripts.convergence import rules
from scripts.convergence.results import ContenderResult, Point, Results, Run, TaskResult, Trial

FULL = rules.load(rules.DEFAULT)


def run(seed, values, compiling=2.0, refreshes=8):
    """A run that is evaluated every half epoch of ten steps, 5 s each."""
    points = [
        Point(epoch=(i + 1) / 2, step=5 * (i + 1), seconds=compiling + 5.0 * (i + 1), compiling=compiling, value=value)
        for i, value in enumerate(values)
    ]
    return Run(seed=seed, points=points, refreshes=refreshes, peak=2**30)


def broken(seed):
    return Run(seed=seed)


def trials(*runs):
    return [Trial(values={"length": 1.0, "number": index}, run=each) for index, each in enumerate(runs)]


#: Errors of an autoencoder, where 5.0 is the target: Adam reaches it with two of three seeds, Muon with one.
ERRORS = TaskResult(
    target=5.0,
    set_by="adam",
    contenders={
        "adam": ContenderResult(
            trials=trials(run(0, [9.0, 7.0, 6.0]), run(0, [9.0, 4.9, 4.9]), broken(0)),
            to_target=[run(1, [9.0, 6.0, 4.0, 5.0]), run(2, [9.0, 7.0, 6.5, 6.0]), run(3, [9.0, 8.0, 6.0, 5.0])],
            equal_budget=[run(1, [9.0, 6.0, 4.5, 4.6]), run(2, [9.0, 7.0, 4.0, 4.1]), run(3, [9.0, 8.0, 6.0, 5.5])],
        ),
        "muon": ContenderResult(
            trials=trials(run(0, [5.0]), run(0, [4.0]), run(0, [4.0])),
            to_target=[run(1, [6.0, 5.0]), broken(2), run(3, [7.0, 6.0])],
            equal_budget=[run(1, [8.0, 6.0, 5.0, 4.0]), broken(2), run(3, [8.0, 6.0, 5.0, 4.4])],
        ),
        "thor": ContenderResult(
            to_target=[run(1, [6.0, 3.0], 20.0), run(2, [4.0, 2.0], 20.0), run(3, [5.0, 4.0], 20.0)],
            equal_budget=[run(seed, [5.0, 4.0, 3.0, 2.0 + 0.1 * seed], 20.0) for seed in (1, 2, 3)],
        ),
    },
)
#: The same of an accuracy.
ACCURACIES = TaskResult(
    target=0.8,
    set_by="adam",
    contenders={
        "adam": ContenderResult(
            trials=trials(run(0, [0.5, 0.82])), to_target=[run(1, [0.5, 0.8])], equal_budget=[run(1, [0.6, 0.7, 0.85])]
        ),
        "thor": ContenderResult(
            trials=trials(run(0, [0.5, 0.82])),
            to_target=[run(1, [0.81, 0.82])],
            equal_budget=[run(1, [0.8, 0.88, 0.9])],
        ),
    },
)
RESULTS = Results(
    rules=FULL, machine={"processor": "made up"}, tasks={"autoencoder": ERRORS, "resnet8-128": ACCURACIES}
)
