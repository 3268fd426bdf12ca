"""Sparse gradients, given by rows as (values, indices), for example of an embedding."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops

from first_order import tensor_checks
from first_order.tensors import working_type


def dense_gradient(param, values, indices):
    """The dense gradient in ``param``'s shape: row r is the sum of all ``values[i]`` with ``indices[i] == r``.

    It has the working type, because a sum of many float16 rows loses precision and can overflow.
    """
    dtype = working_type(param.dtype)
    return ops.tensor_scatter_add(ops.zeros_like(param).astype(dtype), indices.reshape(-1, 1), values.astype(dtype))


def seen_rows(param, indices):
    """A mask in ``param``'s shape that is True in the rows listed in ``indices``."""
    rows = (param.shape[0],) + (1,) * (param.ndim - 1)
    ones = ops.ones(indices.shape, ms.float32)
    count = ops.tensor_scatter_add(ops.zeros((param.shape[0],), ms.float32), indices.reshape(-1, 1), ones)
    return ops.broadcast_to((count > 0).reshape(rows), param.shape)


def check_rows(name, param, values, indices):
    """(values, indices) as Tensors; raise unless they are rows of a gradient of ``param``.

    The range of the indices is checked because an index out of range would write to other memory.
    """
    values = tensor_checks.as_tensor(f"values of {name}", values, tensor_checks.FLOATS)
    indices = tensor_checks.as_tensor(f"indices of {name}", indices, (ms.int32, ms.int64))
    if param.ndim < 1:
        raise ValueError(f"{name} must have at least one dimension to take a sparse gradient, but has none")
    if indices.ndim != 1 or tuple(values.shape) != (*indices.shape, *param.shape[1:]):
        raise ValueError(
            f"values and indices of {name} must have shapes (n, {', '.join(map(str, param.shape[1:]))}) and (n,), "
            f"but got {tuple(values.shape)} and {tuple(indices.shape)}"
        )
    if values.dtype != param.dtype:
        raise TypeError(f"values of {name} must be of its type, {param.dtype}, but got {values.dtype}")
    rows = indices.asnumpy()
    if rows.size and not 0 <= rows.min() <= rows.max() < param.shape[0]:
        outside = rows[(rows < 0) | (rows >= param.shape[0])]
        raise ValueError(
            f"indices of {name} must be in [0, {param.shape[0]}), but got {np.unique(outside)[:5].tolist()}"
        )
    return values, indices
