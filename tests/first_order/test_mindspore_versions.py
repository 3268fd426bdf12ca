"""What versions of MindSpore do differently, in one form."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from first_order import mindspore_versions
from thor.runtime.modes import in_mode

VALUES = {"zeros": np.zeros(3), "ones": np.ones(3), "numbers": np.arange(3), "not a number": np.full(3, np.nan)}


def test_the_compiler_is_the_one_that_cells_use():
    assert mindspore_versions.compiler._cell_graph_executor is nn.cell._cell_graph_executor


def test_the_first_module_that_is_there_is_taken():
    assert mindspore_versions.first_module("mindspore.not_there", "mindspore.nn") is nn
    with pytest.raises(ImportError, match=r"mindspore.not_there, mindspore.neither is there"):
        mindspore_versions.first_module("mindspore.not_there", "mindspore.neither")


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("dtype", [ms.float32, ms.float16])
def test_an_ordinary_parameter_takes_what_is_assigned_and_keeps_its_value(value, dtype, monkeypatch):
    monkeypatch.setattr(mindspore_versions, "_ASSIGN_MAY_BE_IGNORED", True)
    with in_mode(ms.PYNATIVE_MODE):
        parameter = Parameter(Tensor(value, dtype), name="p")
        assert not mindspore_versions.ignores_assign(parameter)
        np.testing.assert_array_equal(parameter.asnumpy(), value)


@pytest.mark.skipif(not mindspore_versions._ASSIGN_MAY_BE_IGNORED, reason="later versions refuse to assign")
def test_a_view_takes_nothing_in_old_versions():
    with in_mode(ms.PYNATIVE_MODE):
        parameter = Parameter(Tensor(np.zeros(3, np.float32)), name="p")
        parameter.set_data(Tensor(np.arange(3, dtype=np.float32).reshape(1, -1)).reshape((-1,)))
        assert mindspore_versions.ignores_assign(parameter)
        np.testing.assert_array_equal(parameter.asnumpy(), [0, 1, 2])


def test_the_address_moves_with_the_value_and_nothing_is_printed(capfd):
    parameter = Parameter(Tensor(np.zeros(3, np.float32)), name="p")
    mindspore_versions.address(parameter)  # 0 in MindSpore 2.7.0
    ops.assign(parameter, Tensor(np.ones(3, np.float32)))
    before = mindspore_versions.address(parameter)
    assert before == parameter.data_ptr() != 0
    ops.assign(parameter, Tensor(np.zeros(3, np.float32)))
    assert mindspore_versions.address(parameter) == before
    parameter.set_data(Tensor(np.ones(3, np.float32)))
    assert mindspore_versions.address(parameter) != before
    assert capfd.readouterr() == ("", "")
