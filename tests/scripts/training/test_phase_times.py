"""What of a run's time counts as compiling."""

import mindspore as ms

from first_order.compiled import CompiledFunction
from scripts.training.phase_times import COMPILING, Phases


def test_a_step_that_compiles_is_a_step_beside_what_the_compiler_takes_of_it():
    phases = Phases()
    for kind, seconds, compiling in [
        ("refresh", 9.0, 8.0), ("plain", 5.0, 4.5), ("curvature", 1.0, 0.0), ("plain", 0.25, 0.0), ("data", 0.125, 0.0),
    ]:  # fmt: skip
        phases.add(kind, seconds, compiling)
    assert phases.compiling == 12.5
    assert phases.sums() == {
        "refresh": [1, 1.0], COMPILING: [2, 12.5], "plain": [2, 0.75], "curvature": [1, 1.0], "data": [1, 0.125],
    }  # fmt: skip


def test_an_earlier_process_compiled_too():
    phases = Phases()
    assert phases.compiling == 0.0
    phases.restore({COMPILING: [2, 7.0]})
    phases.add("plain", 3.0, 2.5)
    assert phases.compiling == 9.5


def test_the_seconds_of_a_compilation_are_counted_once():
    def increment(x):
        return x + 1

    function, x = CompiledFunction(increment), ms.Tensor([1.0])
    before = CompiledFunction.seconds
    function(x)
    after = CompiledFunction.seconds
    function(x + 1)
    assert before < after == CompiledFunction.seconds
    function(ms.Tensor([1.0, 2.0]))
    assert CompiledFunction.seconds > after
