"""The measurement of starts: what is timed, and that nothing of the measuring stays behind."""

from mindspore import Tensor

from first_order.compiled import CompiledFunction
from first_order.mindspore_versions import compiler
from scripts.bench.start import compilations, in_fresh_process


def test_compilations_are_told_by_name_and_the_first_counts():
    def doubled(x):
        return x + x

    doubled = CompiledFunction(doubled)
    original = compiler._CellGraphExecutor.compile
    with compilations() as seconds:
        doubled(Tensor(1.0))
        first = dict(seconds)
        doubled(Tensor(2.0))
    assert first["doubled"] > 0 and seconds == first and list(first) == ["doubled"]
    assert compiler._CellGraphExecutor.compile is original


def test_a_process_of_its_own_answers_with_its_last_line():
    program = "import sys, thor; print('noise'); print([int('scripts' in sys.modules), 1])"
    assert in_fresh_process("-c", program) == [0, 1]
