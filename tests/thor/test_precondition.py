import numpy as np
import pytest
from mindspore import Tensor

from tests import reference
from thor import precondition as subject

RNG = np.random.default_rng(7)


def inverse_parts(copies, dim, size, rank, split):
    """Blocks, s, t as NumPy, and the dense [c, dim, dim] matrix that they stand for; padding rows hold rubbish."""
    count = -(-dim // size)
    padded = size * count
    blocks = RNG.standard_normal((copies, count, size, size))
    blocks = blocks + blocks.transpose(0, 1, 3, 2)
    dense = np.zeros((copies, padded, padded))
    for n in range(count):
        dense[:, n * size : (n + 1) * size, n * size : (n + 1) * size] = blocks[:, n]
    if split:
        s, t = RNG.standard_normal((copies, padded, rank)), RNG.standard_normal((copies, rank, padded))
        s[:, dim:], t[:, :, dim:] = 0, 0
        dense = dense - s @ t
    else:
        s, t = np.zeros((2, 1))
    return blocks, s, t, dense[:, :dim, :dim]


CASES = [  # copies, O, I, block size of G, of A, rank (0: plain blocks)
    (1, 4, 6, 4, 6, 0),
    (1, 4, 6, 2, 3, 0),
    (1, 5, 7, 2, 3, 0),
    (1, 5, 7, 2, 3, 1),
    (1, 5, 7, 5, 3, 2),
    (1, 5, 7, 2, 7, 2),
    (3, 5, 7, 2, 3, 2),
    (3, 1, 1, 1, 1, 0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_preconditioning_equals_the_explicit_kronecker_product(case):
    copies, outputs, inputs, g_size, a_size, rank = case
    *a_parts, a_dense = inverse_parts(copies, inputs, a_size, rank, rank and a_size < inputs)
    *g_parts, g_dense = inverse_parts(copies, outputs, g_size, rank, rank and g_size < outputs)
    matrix = RNG.standard_normal((copies, outputs, inputs))
    parts = [Tensor(p.astype(np.float32)) for p in (*a_parts, *g_parts)]
    rows, columns = (count * size for _, count, size, _ in (parts[3].shape, parts[0].shape))
    weight = Tensor(matrix.astype(np.float32).reshape(copies * outputs, inputs))
    padded = subject.to_matrix(weight, None, copies, rows, columns)
    shape = subject.shape_of_result(weight, rows, columns, copies, 1)
    (direction,) = subject.from_matrix(subject.precondition(padded, *parts, shape), weight, None, copies)
    found = direction.asnumpy().reshape(copies, outputs, inputs)
    for k in range(copies):
        # A^-1 need not be symmetric here: vec(G X A) = kron(G, A^T) vec(X)
        wanted = reference.kron_direction(matrix[k], a_dense[k].T, g_dense[k])
        np.testing.assert_allclose(found[k], wanted, rtol=1e-4, atol=1e-3)  # sums of up to 35 terms of size 10


def test_a_gradient_becomes_a_matrix_per_group_with_the_bias_last():
    weight, bias = RNG.standard_normal((6, 2, 3, 1)), RNG.standard_normal(6)
    tensors = Tensor(weight.astype(np.float32)), Tensor(bias.astype(np.float32))
    found = subject.to_matrix(*tensors, 2, 3, 7).asnumpy()
    wanted = np.concatenate([weight.reshape(2, 3, 6), bias.reshape(2, 3, 1)], axis=2)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))
    np.testing.assert_array_equal(subject.to_matrix(tensors[0], None, 2, 3, 6).asnumpy(), found[:, :, :-1])


@pytest.mark.parametrize("rows, columns", [(3, 7), (3, 9), (4, 7), (5, 8)])
def test_padding_is_zero_and_cut_off_again(rows, columns):
    weight = Tensor(RNG.standard_normal((6, 2, 3, 1)).astype(np.float32))
    bias = Tensor(RNG.standard_normal(6).astype(np.float32))
    padded = subject.to_matrix(weight, bias, 2, rows, columns)
    assert padded.shape == (2, rows, columns)
    assert not padded.asnumpy()[:, 3:].any()
    assert not padded.asnumpy()[:, :, 7:].any()
    for found, given in zip(subject.from_matrix(padded, weight, bias, 2), (weight, bias), strict=True):
        np.testing.assert_array_equal(found.asnumpy(), given.asnumpy())
