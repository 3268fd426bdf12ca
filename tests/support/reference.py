"""The dense NumPy reference, in float64: slow, explicit, and written from the equations alone.

Shapes as in thor/factors/formulas.py. ``g`` is always the gradient of the *mean* loss by a layer's output before
activation.
Matrices are flattened row by row, so that vec(G^-1 W A^-1) = kron(G^-1, A^-1) vec(W) for symmetric A and G.
"""

from __future__ import annotations

import numpy as np

Pads = tuple[int, int, int, int]  # top, bottom, left, right


def with_ones(rows: np.ndarray) -> np.ndarray:
    """[N, d] with a last column of ones."""
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def dense_factors(a: np.ndarray, g: np.ndarray, bias: bool) -> tuple[np.ndarray, np.ndarray]:
    """A = (1/N) sum a a^T and G = N sum g g^T over N rows."""
    a, g = a.reshape(-1, a.shape[-1]).astype(np.float64), g.reshape(-1, g.shape[-1]).astype(np.float64)
    a = with_ones(a) if bias else a
    count = len(a)
    return sum(np.outer(r, r) for r in a) / count, sum(np.outer(r, r) for r in g) * count


def same_pads(size: tuple[int, int], kernel, stride, dilation) -> Pads:
    """Padding of pad_mode "same": ceil(size / stride) positions, an odd rest goes behind."""
    pads: list[int] = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        pads += [total // 2, total - total // 2]
    return tuple(pads)


def patches(x: np.ndarray, kernel, stride, dilation, pads: Pads) -> np.ndarray:
    """[B, H', W', C, kh, kw]: what the kernel sees at each position, pixel by pixel."""
    batch, channels, _, _ = x.shape
    top, bottom, left, right = pads
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows = (x.shape[2] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    columns = (x.shape[3] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    out = np.zeros((batch, rows, columns, channels, *kernel))
    for i in range(rows):
        for j in range(columns):
            for u in range(kernel[0]):
                for v in range(kernel[1]):
                    out[:, i, j, :, u, v] = x[:, :, i * stride[0] + u * dilation[0], j * stride[1] + v * dilation[1]]
    return out


def convolve(seen: np.ndarray, weight: np.ndarray, groups: int) -> np.ndarray:
    """[B, O, H', W'] from patches and weight [O, C / groups, kh, kw]."""
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    parts = []
    for k in range(groups):
        mine = seen[:, :, :, k * inputs : (k + 1) * inputs]
        parts.append(np.einsum("bijcuv,ocuv->boij", mine, weight[k * outputs : (k + 1) * outputs].astype(np.float64)))
    return np.concatenate(parts, axis=1)


def conv_factors(seen: np.ndarray, g: np.ndarray, groups: int, bias: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per group, A = (1/B) sum over examples and positions p p^T, G = (B / P) sum g g^T."""
    batch, rows, columns, channels = seen.shape[:4]
    inputs, outputs, positions = channels // groups, g.shape[1] // groups, rows * columns
    found = []
    for k in range(groups):
        a = seen[:, :, :, k * inputs : (k + 1) * inputs].reshape(batch * positions, -1)
        a = with_ones(a) if bias else a
        s = g[:, k * outputs : (k + 1) * outputs].astype(np.float64).transpose(0, 2, 3, 1).reshape(-1, outputs)
        found.append((a.T @ a / batch, s.T @ s * batch / positions))
    return found


def block_diagonal(matrix: np.ndarray, size: int) -> np.ndarray:
    """The diagonal blocks of ``size`` (the last one shorter), zero elsewhere."""
    index = np.arange(len(matrix)) // size
    return np.where(index[:, None] == index[None, :], matrix, 0.0)


def with_mean(factor: np.ndarray, mean: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(D, u u^T) with D the blocks of factor - u u^T."""
    shared = np.outer(mean, mean)
    return block_diagonal(factor - shared, size), shared


def with_mean_and_bias(factor: np.ndarray, mean: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The same with blocks of the inputs alone: D's last row and column, the bias's, are zero."""
    shared = np.outer(mean, mean)
    rest = np.zeros_like(factor)
    rest[:-1, :-1] = block_diagonal((factor - shared)[:-1, :-1], size)
    return rest, shared


def with_rank(factor: np.ndarray, probe: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(D, L) with L = Z W^-1 Z^T, Z = A Q, W = Q^T A Q (Nystroem), D the blocks of what remains."""
    z = factor @ probe
    shared = z @ np.linalg.pinv(probe.T @ z, rcond=1e-6, hermitian=True) @ z.T
    return block_diagonal(factor - shared, size), shared


def pi_damping(a: np.ndarray, g: np.ndarray, damping: float) -> tuple[float, float]:
    """What A's and G's diagonals get: pi sqrt(damping) and sqrt(damping) / pi."""
    pi = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / len(g)))
    return pi * np.sqrt(damping), np.sqrt(damping) / pi


def damped_inverse(matrix: np.ndarray, damping: float) -> np.ndarray:
    """(M + damping I)^-1."""
    return np.linalg.inv(matrix + damping * np.eye(len(matrix)))


def kron_direction(gradient: np.ndarray, a_inverse: np.ndarray, g_inverse: np.ndarray) -> np.ndarray:
    """G^-1 dW A^-1 through the explicit Kronecker product, for dW [O, I]."""
    return (np.kron(g_inverse, a_inverse) @ gradient.reshape(-1)).reshape(gradient.shape)


def empirical_fisher(per_example: np.ndarray) -> np.ndarray:
    """(1/B) sum of v v^T over per-example gradients v, [B, n]."""
    return per_example.T.astype(np.float64) @ per_example / len(per_example)


def running_average(values: list[np.ndarray], decay: float) -> np.ndarray:
    """The exponential average with its bias taken out: sum of decay^age x, over the sum of decay^age."""
    weights = decay ** np.arange(len(values) - 1, -1, -1, dtype=np.float64)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / weights.sum()


def mlp_pass(weights, biases, x, y) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """(loss, inputs, output gradients) per layer: dense layers with tanh between, squared error.

    L = (1/B) sum over examples of |out - y|^2.
    """
    inputs, value = [], x.astype(np.float64)
    for index, (w, b) in enumerate(zip(weights, biases, strict=True)):
        inputs.append(value)
        value = value @ w.T.astype(np.float64) + (0 if b is None else b)
        value = np.tanh(value) if index < len(weights) - 1 else value
    loss = ((value - y) ** 2).sum() / len(x)
    gradients, g = [], 2 * (value - y) / len(x)
    for index in reversed(range(len(weights))):
        gradients.insert(0, g)
        g = (g @ weights[index].astype(np.float64)) * (1 - inputs[index] ** 2)
    return loss, inputs, gradients
