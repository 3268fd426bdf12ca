import numpy as np
import pytest
from mindspore import Tensor

from tests.support import reference
from thor.curvature.direction import Direction, Form

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
    weight = Tensor(matrix.astype(np.float32).reshape(copies * outputs, inputs))
    direction = Direction(form_of(weight, None, copies, parts))
    ((found,),) = direction.cut(direction(direction.matrices(((weight,),)), parts), ((weight,),))
    found = found.asnumpy().reshape(copies, outputs, inputs)
    for k in range(copies):
        # A^-1 need not be symmetric here: vec(G X A) = kron(G, A^T) vec(X)
        wanted = reference.kron_direction(matrix[k], a_dense[k].T, g_dense[k])
        np.testing.assert_allclose(found[k], wanted, rtol=1e-4, atol=1e-3)  # sums of up to 35 terms of size 10


def form_of(weight, bias, copies, caches):
    shapes = [tuple(part.shape) for part in caches]
    return Form(tuple(weight.shape), weight.dtype, bias is not None, copies, 1, tuple(shapes[:3]), tuple(shapes[3:]))


def identity_caches(copies, rows, columns):
    """Whole inverses of a size."""
    thin = [np.zeros(1)] * 2
    whole = [np.broadcast_to(np.eye(size), (copies, 1, size, size)) for size in (columns, rows)]
    return [Tensor(p.astype(np.float32)) for p in (whole[0], *thin, whole[1], *thin)]


def test_a_gradient_becomes_a_matrix_per_group_with_the_bias_last():
    weight, bias = RNG.standard_normal((6, 2, 3, 1)), RNG.standard_normal(6)
    tensors = Tensor(weight.astype(np.float32)), Tensor(bias.astype(np.float32))
    (found,) = Direction(form_of(*tensors, 2, identity_caches(2, 3, 7))).matrices((tensors,))
    wanted = np.concatenate([weight.reshape(2, 3, 6), bias.reshape(2, 3, 1)], axis=2)
    np.testing.assert_array_equal(found.asnumpy(), wanted.astype(np.float32))
    (alone,) = Direction(form_of(tensors[0], None, 2, identity_caches(2, 3, 6))).matrices((tensors[:1],))
    np.testing.assert_array_equal(alone.asnumpy(), found.asnumpy()[:, :, :-1])


@pytest.mark.parametrize("rows, columns", [(3, 7), (3, 9), (4, 7), (5, 8)])
def test_padding_is_zero_and_cut_off_again(rows, columns):
    weight = Tensor(RNG.standard_normal((6, 2, 3, 1)).astype(np.float32))
    bias = Tensor(RNG.standard_normal(6).astype(np.float32))
    caches = identity_caches(2, rows, columns)
    direction = Direction(form_of(weight, bias, 2, caches))
    (padded,) = direction.matrices(((weight, bias),))
    assert padded.shape == (2, rows, columns)
    assert not padded.asnumpy()[:, 3:].any()
    assert not padded.asnumpy()[:, :, 7:].any()
    made = direction((padded,), caches)
    for found, given in zip(direction.cut(made, ((weight, bias),))[0], (weight, bias), strict=True):
        np.testing.assert_array_equal(found.asnumpy(), given.asnumpy())
