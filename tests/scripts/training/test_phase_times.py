"""Which steps of a run count as compiling."""

from scripts.training.phase_times import COMPILING, Phases


def test_the_first_step_of_each_kind_and_those_that_compiled_anew_count_as_compiling():
    phases = Phases()
    for kind, seconds, compiled in [
        ("refresh", 9.0, True), ("plain", 5.0, False), ("curvature", 1.0, False), ("plain", 0.25, False),
        ("refresh", 0.5, False), ("curvature", 4.0, True), ("curvature", 0.5, False), ("data", 0.125, False),
    ]:  # fmt: skip
        phases.add(kind, seconds, compiled)
    assert phases.compiling == 19.0
    assert phases.sums() == {
        COMPILING: [4, 19.0], "plain": [1, 0.25], "refresh": [1, 0.5], "curvature": [1, 0.5], "data": [1, 0.125],
    }  # fmt: skip


def test_an_earlier_process_compiled_too():
    phases = Phases()
    assert phases.compiling == 0.0
    phases.restore({COMPILING: [2, 7.0]})
    phases.add("plain", 3.0)
    assert phases.compiling == 10.0
