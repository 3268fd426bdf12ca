import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.support import reference
from thor.factors import formulas
from thor.runtime.geometry import geometry_of

RNG = np.random.default_rng(3)
# float32 products of about a hundred unit-sized terms
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def tensor(*shape):
    return Tensor(RNG.standard_normal(shape).astype(np.float32) + 0.4)


def dense(blocks):
    """[c, n, b, b] as c block-diagonal matrices."""
    copies, count, size, _ = blocks.shape
    full = np.zeros((copies, count * size, count * size))
    for k in range(count):
        full[:, k * size : (k + 1) * size, k * size : (k + 1) * size] = blocks.asnumpy()[:, k]
    return full


def gram(features, scale, size, by_rows=False):
    """Blocks of the features' factor, padded with zeros."""
    dim = features.shape[3 if by_rows else 2]
    count = -(-dim // size)
    if size * count > dim:
        put = formulas.append_constants_by_rows if by_rows else formulas.append_constants
        features = put(features, (0.0,) * (size * count - dim))
    if size == 1:
        return (formulas.diagonal_by_rows if by_rows else formulas.diagonal)(features, scale)
    return (formulas.block_gram_by_rows if by_rows else formulas.block_gram)(features, scale, size, count)


def with_bias(features, scale, rows, bias, by_rows=False):
    """Features that have the bias's coordinate, if there is one."""
    put = formulas.append_constants_by_rows if by_rows else formulas.append_constants
    return (put(features, (1.0,)) if bias else features), scale


@pytest.mark.parametrize("bias", [True, False])
def test_dense_factors_equal_the_gram_matrices_of_the_rows(bias):
    a, g = tensor(7, 5), tensor(7, 3)
    wanted = reference.dense_factors(a.asnumpy(), g.asnumpy(), bias)
    of_a = with_bias(*formulas.dense_input(a), bias, by_rows=True)
    for (features, scale), matrix in zip((of_a, formulas.dense_output(g, 7)[:2]), wanted, strict=True):
        dim = len(matrix)
        np.testing.assert_allclose(gram(features, scale, dim, True)[0, 0].asnumpy(), matrix, **CLOSE)
        traces = formulas.traces(gram(features, scale, 2, True)).asnumpy()
        np.testing.assert_allclose(traces, [np.trace(matrix)], rtol=1e-5)


VARIANTS = {
    "same": {"kernel_size": 3, "pad_mode": "same"},
    "same, stride 2, even kernel": {"kernel_size": 4, "stride": 2, "pad_mode": "same"},
    "valid, rectangular": {"kernel_size": (2, 3), "pad_mode": "valid"},
    "pad 1": {"kernel_size": 3, "pad_mode": "pad", "padding": 1},
    "asymmetric pad": {"kernel_size": (3, 2), "stride": (2, 1), "pad_mode": "pad", "padding": (2, 0, 1, 3)},
    "dilation": {"kernel_size": 3, "dilation": (2, 1), "pad_mode": "same"},
    "1x1": {"kernel_size": 1, "pad_mode": "valid"},
    "1x1, stride 2": {"kernel_size": 1, "stride": 2, "pad_mode": "valid"},
    "groups": {"kernel_size": 3, "group": 2, "pad_mode": "same"},
    "depthwise, rectangular": {"kernel_size": (1, 3), "group": 4, "pad_mode": "valid"},
}


def seen_by(conv, x):
    """The reference patches of a convolution's input."""
    kernel, stride, dilation = (tuple(v)[-2:] for v in (conv.kernel_size, conv.stride, conv.dilation))
    if conv.pad_mode == "same":
        pads = reference.same_pads(x.shape[2:], kernel, stride, dilation)
    elif conv.pad_mode == "valid":
        pads = (0, 0, 0, 0)
    else:
        pads = (conv.padding,) * 4 if isinstance(conv.padding, int) else conv.padding
    return reference.patches(x.asnumpy(), kernel, stride, dilation, pads)


@pytest.fixture(params=[1, 10**9], ids=["examples apart", "all rows in one"])
def parts_from(request, monkeypatch):
    """Both forms of a convolution's features."""
    monkeypatch.setattr(formulas, "PART_POSITIONS", request.param)
    return request.param


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_convolution_factors_equal_the_patches_gram_matrices(variant, bias, parts_from):
    conv = nn.Conv2d(4, 8, has_bias=bias, **VARIANTS[variant])
    x = tensor(2, 4, 6, 7)
    seen = seen_by(conv, x)
    g = tensor(2, 8, *seen.shape[1:3])
    wanted = reference.conv_factors(seen, g.asnumpy(), conv.group, bias)
    inputs, a_scale = with_bias(*formulas.conv_input(x, geometry_of(conv)), bias)
    outputs, g_scale, _ = formulas.conv_output(g, conv.group, 2)
    assert len(inputs) == len(outputs) == (2 if parts_from == 1 else 1)
    a = gram(inputs, a_scale, inputs.shape[2]).asnumpy()
    h = gram(outputs, g_scale, outputs.shape[2]).asnumpy()
    assert len(a) == len(h) == conv.group
    for k, (wanted_a, wanted_g) in enumerate(wanted):
        np.testing.assert_allclose(a[k, 0], wanted_a, rtol=1e-5, atol=1e-4)  # entries reach a hundred
        np.testing.assert_allclose(h[k, 0], wanted_g, **CLOSE)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_blocks_equal_the_diagonal_blocks_of_the_full_factor(size):
    features, scale = with_bias(*formulas.dense_input(tensor(7, 9)), True, by_rows=True)
    full = gram(features, scale, 10, True)[0, 0].asnumpy()
    blocks = dense(gram(features, scale, size, True))[0]
    np.testing.assert_allclose(blocks[:10, :10], reference.block_diagonal(full, size), **CLOSE)
    assert not blocks[10:].any() and not blocks[:, 10:].any()


def test_the_mean_is_the_largest_that_leaves_the_rest_positive_semi_definite():
    rows = tensor(7, 5)
    features, scale = with_bias(*formulas.dense_input(rows), True, by_rows=True)
    full = gram(features, scale, 6, True)[0, 0].asnumpy().astype(np.float64)
    weight = formulas.weight_of_mean(scale, 7)
    mean = formulas.scaled_mean_by_rows(features, weight)[0, :, 0].asnumpy().astype(np.float64)
    np.testing.assert_allclose(mean, [*rows.asnumpy().mean(0), 1.0], rtol=1e-5)
    lowest = np.linalg.eigvalsh(full - np.outer(mean, mean))[0]
    assert lowest > -1e-5
    assert np.linalg.eigvalsh(full - 1.01 * np.outer(mean, mean))[0] < -1e-3


def test_the_mean_of_a_convolutions_patches_is_scaled_with_their_number(parts_from):
    conv = nn.Conv2d(2, 3, 3, pad_mode="valid", has_bias=True)
    x = tensor(2, 2, 5, 5)
    rows = reference.with_ones(seen_by(conv, x).reshape(2 * 9, -1))
    features, scale, count = formulas.conv_input(x, geometry_of(conv))
    assert count == 2 * 9
    weight = formulas.weight_of_mean(scale, count)
    of_bias = formulas.bias_mean(features, weight, count).asnumpy()
    features, _ = with_bias(features, scale, count, True)
    mean = formulas.scaled_mean(features, weight)[0, :, 0].asnumpy()
    np.testing.assert_allclose(mean, 3 * rows.mean(0), **CLOSE)  # sqrt(rows / B) = sqrt(9)
    np.testing.assert_allclose(of_bias, [[[3.0]]], rtol=1e-6)


def test_a_sketch_is_the_factor_times_the_probe(parts_from):
    of_groups = formulas.conv_output(tensor(3, 12, 2, 2), 2, 3)
    for (features, scale, _), by_rows in ((formulas.dense_input(tensor(7, 6)), True), (of_groups, False)):
        copies = features.shape[1]
        probe = tensor(copies, 6, 2)
        full = gram(features, scale, 6, by_rows)[:, 0].asnumpy()
        found = (formulas.sketch_by_rows if by_rows else formulas.sketch)(features, scale, probe)
        np.testing.assert_allclose(found.asnumpy(), full @ probe.asnumpy(), **CLOSE)


def test_blocks_of_one_are_the_diagonal_in_both_forms(parts_from):
    g = tensor(3, 4, 2, 3)
    features, scale, _ = formulas.conv_output(g, 2, 3)
    squares = (g.asnumpy() ** 2).sum((0, 2, 3)) * scale
    np.testing.assert_allclose(gram(features, scale, 1).asnumpy().reshape(-1), squares, rtol=1e-5)


def test_the_traces_are_per_copy():
    blocks = tensor(3, 2, 4, 4)
    wanted = [sum(np.trace(b) for b in copy) for copy in blocks.asnumpy()]
    np.testing.assert_allclose(formulas.traces(blocks).asnumpy(), wanted, **CLOSE)


def test_factors_are_float32_for_half_precision_inputs():
    """Values whose squares overflow float16: the products are taken in float32."""
    rows = Tensor(np.full((4, 3), 300.0), ms.float16)
    for features, scale, _ in (formulas.dense_input(rows), formulas.dense_output(rows, 4)):
        assert features.dtype == ms.float32
        assert np.isfinite(gram(features, scale, 2, True).asnumpy()).all()
