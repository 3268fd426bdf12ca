"""SOAP's state and step of one tensor, as functions."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from first_order import checks, tensor_checks
from first_order.adam import bias_correction
from first_order.soap.eigenbases import adam_in_basis, axes_of, first_basis, gram, merged_shape, renewed
from first_order.tensors import on_host, scalar, working_type


def soap_init(
    param: Any, *, max_precond_dim: int = 10000, merge_dims: bool = False, precondition_1d: bool = False
) -> dict[str, Tensor]:
    """The initial state of a tensor: zeros, and identities as eigenbases.

    Args:
        param: Tensor or NumPy array, float16, float32 or float64.
        max_precond_dim: an axis of more entries has no eigenbasis.
        merge_dims: merge neighbouring axes while their product is at most ``max_precond_dim``.
        precondition_1d: a vector has an eigenbasis too.

    Returns:
        ``exp_avg`` and ``exp_avg_sq`` in the shape of ``param``, and ``GG0``, ``Q0``, ``GG1``, ... [d, d] for each axis
        with an eigenbasis; in the working type: float64 of float64, else float32.

    Example:
        >>> import numpy as np
        >>> from first_order import soap_init
        >>> state = soap_init(np.ones((3, 20), np.float32), max_precond_dim=10)
        >>> print({name: value.shape for name, value in state.items()})
        {'exp_avg': (3, 20), 'exp_avg_sq': (3, 20), 'GG0': (3, 3), 'Q0': (3, 3)}
    """
    param = tensor_checks.as_tensor("param", param, tensor_checks.FLOATS)
    max_precond_dim, merge_dims, precondition_1d = check_shapes(max_precond_dim, merge_dims, precondition_1d)
    dtype = working_type(param.dtype)
    shape = merged_shape(param.shape, max_precond_dim, merge_dims)
    state = {"exp_avg": ops.zeros(param.shape, dtype), "exp_avg_sq": ops.zeros(param.shape, dtype)}
    for axis in axes_of(shape, max_precond_dim, precondition_1d, param.ndim):
        state[f"GG{axis}"] = ops.zeros((shape[axis], shape[axis]), dtype)
        state[f"Q{axis}"] = ops.eye(shape[axis], dtype=dtype)
    return state


def soap_update(
    param, state, grad, step, learning_rate=3e-3, beta1=0.95, beta2=0.95, shampoo_beta=None, epsilon=1e-8,
    weight_decay=0.01, *, precondition_frequency=10, max_precond_dim=10000, merge_dims=False, precondition_1d=False,
    normalize_grads=False, correct_bias=True,
):  # fmt: skip
    r"""One SOAP step of a tensor as a function.

    Shampoo's matrices are running averages of :math:`G G^\top` and :math:`G^\top G`. Adam works in their eigenbases,
    where the entries of the gradient are less correlated. Between two renewals of the eigenbases, SOAP is Adam in fixed
    coordinates. For a matrix:

    .. math::
        G' &= Q_L^\top G\, Q_R, \qquad M \leftarrow \beta_1 M + (1 - \beta_1) G', \qquad
        V \leftarrow \beta_2 V + (1 - \beta_2) G'^2 \\
        x &\leftarrow \Bigl(x - \eta \tfrac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\,
        Q_L \frac{M}{\sqrt{V} + \epsilon} Q_R^\top\Bigr) (1 - \eta \lambda) \\
        L &\leftarrow \beta_s L + (1 - \beta_s) G G^\top, \qquad R \leftarrow \beta_s R + (1 - \beta_s) G^\top G \\
        Q_L &\leftarrow \mathrm{QR}(L Q_L), \quad Q_R \leftarrow \mathrm{QR}(R\, Q_R)
        \quad\text{if } t \text{ is a multiple of the frequency}

    Before a QR, the columns of the basis are sorted by :math:`q^\top L q`, the largest first, and V with them. M goes
    along: out of the old basis, into the new one. A tensor of more axes has a matrix and a basis for each.

    Args:
        param: x, float16, float32 or float64; float16 is computed in float32 and rounded once.
        state: a dictionary as returned by :func:`soap_init`.
        grad: G, in the shape and type of ``param``.
        step: t, the number of gradients before this one: an integer or a Tensor of one element. Step 0 starts L, R and
            the eigenbases, by a whole eigendecomposition, and moves nothing. So no gradient meets a basis made of it.
        learning_rate: :math:`\eta`. Like the next five it is a number or a Tensor of one element.
        beta1: decay of M, in [0, 1).
        beta2: decay of V, in [0, 1).
        shampoo_beta: decay of L and R, :math:`\beta_s`, in [0, 1); None for ``beta2``.
        epsilon: bounds the step in directions of the basis where gradients are tiny.
        weight_decay: :math:`\lambda`, decoupled.
        precondition_frequency: steps between two renewals of the eigenbases.
        max_precond_dim: of :func:`soap_init`, as the next two, and equal to what the state was made with.
        merge_dims: merge neighbouring axes.
        precondition_1d: rotate vectors too.
        normalize_grads: divide the step by its root mean square, before the learning rate. The authors advise it for
            frequencies of about 100.
        correct_bias: correct the bias of M and V, as Adam does.

    Returns:
        (param, state) after the step.

    Example:
        >>> import numpy as np
        >>> from first_order import soap_init, soap_update
        >>> x, grad = np.ones((2, 2)), np.array([[3.0, 1.0], [1.0, 3.0]])  # eigenvalues 4 and 2
        >>> x, state = soap_update(x, soap_init(x), grad, step=0)
        >>> x, state = soap_update(x, state, grad, step=1, learning_rate=0.1, weight_decay=0.0)
        >>> print(x.asnumpy().round(3))  # a step of 0.1 along both eigenvectors
        [[0.9 1. ]
         [1.  0.9]]
    """
    if on_host(param):
        param, state, grad = _checked(param, state, grad, max_precond_dim, merge_dims, precondition_1d)
        _check_hypers(step, learning_rate, beta1, beta2, shampoo_beta, epsilon, weight_decay)
        checks.check_int("precondition_frequency", precondition_frequency, 1)
        checks.flag("normalize_grads", normalize_grads)
        checks.flag("correct_bias", correct_bias)
    dtype = working_type(param.dtype)
    shape = merged_shape(param.shape, max_precond_dim, merge_dims)
    axes = axes_of(shape, max_precond_dim, precondition_1d, param.ndim)
    x, g = param.astype(dtype).reshape(shape), grad.astype(dtype).reshape(shape)
    m, v = state["exp_avg"].reshape(shape), state["exp_avg_sq"].reshape(shape)
    old, bases = (), ()
    for axis in axes:
        old += (state[f"GG{axis}"],)
        bases += (state[f"Q{axis}"],)
    t, rate = scalar(step, ms.int32), scalar(learning_rate, dtype)
    b1, b2 = scalar(beta1, dtype), scalar(beta2, dtype)
    grams = averaged(old, g, axes, b2 if shampoo_beta is None else scalar(shampoo_beta, dtype))
    if t == 0:
        bases = started(grams)
    else:
        keep = 1 - rate * scalar(weight_decay, dtype)
        if correct_bias:
            rate = rate * bias_correction(t, b1, b2, dtype)
        eps = scalar(epsilon, dtype)
        x, m, v = adam_in_basis(x, m, v, g, axes, bases, rate, keep, b1, b2, eps, normalize_grads)
        if t % precondition_frequency == 0:
            m, v, bases = renewed(m, v, axes, grams, bases)
    new = {"exp_avg": m.reshape(param.shape), "exp_avg_sq": v.reshape(param.shape)}
    for k in range(len(axes)):
        new[f"GG{axes[k]}"] = grams[k]
        new[f"Q{axes[k]}"] = bases[k]
    return x.reshape(param.shape).astype(param.dtype), new


def averaged(grams, g, axes, beta):
    """The running averages of Shampoo's matrices with a new gradient."""
    new = ()
    for k in range(len(axes)):
        new += (beta * grams[k] + (1 - beta) * gram(g, axes[k]),)
    return new


def started(grams):
    """The first eigenbases."""
    new = ()
    for matrix in grams:
        new += (first_basis(matrix),)
    return new


def check_shapes(max_precond_dim: Any, merge_dims: Any, precondition_1d: Any) -> tuple[int, bool, bool]:
    """The settings that decide which axes have an eigenbasis; raise if one is wrong."""
    return (
        checks.check_int("max_precond_dim", max_precond_dim, 1),
        checks.flag("merge_dims", merge_dims),
        checks.flag("precondition_1d", precondition_1d),
    )


def _checked(param: Any, state: Any, grad: Any, *settings: Any) -> tuple[Any, ...]:
    """(param, state, grad) as Tensors; raise unless shapes and types fit."""
    param, grad = (tensor_checks.as_tensor(n, t, tensor_checks.FLOATS) for n, t in (("param", param), ("grad", grad)))
    tensor_checks.same_kind(param=param, grad=grad)
    max_precond_dim, merge_dims, precondition_1d = check_shapes(*settings)
    model = soap_init(param, max_precond_dim=max_precond_dim, merge_dims=merge_dims, precondition_1d=precondition_1d)
    if not isinstance(state, dict) or set(state) != set(model):
        found = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"state of a tensor of shape {tuple(param.shape)} must be a dictionary with {', '.join(model)}, as from "
            f"soap_init with the same settings, but got {found}"
        )
    tensors = {n: tensor_checks.as_tensor(f"state[{n!r}]", state[n], (each.dtype,)) for n, each in model.items()}
    for name, each in model.items():
        if tuple(tensors[name].shape) != tuple(each.shape):
            raise ValueError(
                f"state[{name!r}] must have shape {tuple(each.shape)}, but got {tuple(tensors[name].shape)}"
            )
    return param, tensors, grad


def _check_hypers(
    step: Any, learning_rate: Any, beta1: Any, beta2: Any, shampoo_beta: Any, epsilon: Any, weight_decay: Any
) -> None:
    betas = {"beta1": beta1, "beta2": beta2, "shampoo_beta": beta2 if shampoo_beta is None else shampoo_beta}
    for name, value in betas.items():
        checks.below_1(name, tensor_checks.scalar_on_host(name, value))
    for name, value in (("learning_rate", learning_rate), ("epsilon", epsilon), ("weight_decay", weight_decay)):
        tensor_checks.hyper(name, value, 0.0)
    count = checks.at_least_0("step", tensor_checks.scalar_on_host("step", step))
    if count != int(count):
        raise ValueError(f"step must be a whole number from 0, but got {count:g}")
