"""Formulas of normalisation layers: their normalised inputs, and the gradients of examples (pure functions)."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from thor.runtime.graph_ops import reshaped

_sum = ops.ReduceSum()


def per_example(values, channel_last):
    """Sum values over all axes but those of examples (axis 0) and channels: [B, C]."""
    return _sum(reshaped(values, _around_channels(values.shape, channel_last)), (1, 3))


@ops.constexpr
def _around_channels(shape: tuple[int, ...], channel_last: bool) -> tuple[int, ...]:
    return (shape[0], -1, shape[-1], 1) if channel_last else (shape[0], 1, shape[1], -1)


def batch_normalized(x, epsilon):
    """Normalise x [B, C, ...] to mean 0 and variance 1 in each channel, over examples and positions."""
    return _normalized(x.reshape(x.shape[0], x.shape[1], -1), (0, 2), epsilon).reshape(x.shape)


def layer_normalized(x, epsilon):
    """Normalise x [..., C] to mean 0 and variance 1 along its last axis."""
    return _normalized(x, -1, epsilon)


def group_normalized(x, groups, epsilon):
    """Normalise x [B, C, ...] to mean 0 and variance 1 in each example and group of channels."""
    return _normalized(x.reshape(x.shape[0], groups, -1), -1, epsilon).reshape(x.shape)


def _normalized(x, axes, epsilon):
    """X in float32, less its mean over the axes, over its deviation along them."""
    x = x.astype(ms.float32)
    centred = x - x.mean(axes, keep_dims=True)
    return centred * ops.rsqrt((centred * centred).mean(axes, keep_dims=True) + epsilon)
