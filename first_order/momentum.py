r"""Momentum as ONNX's ``ai.onnx.preview.training`` operator, version 1, computes it.

Reference: https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Momentum.html
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from first_order import checks, tensor_checks
from first_order.base import FirstOrder, map_with_rates, write_all
from first_order.tensors import on_host, scalar, working_type

MODES = ("standard", "nesterov")


def momentum_update(learning_rate, update_count, params, grads, velocities, *, alpha, beta, norm_coefficient, mode):
    r"""One Momentum step of several tensors as a function, with the operator's order of inputs R, T, X, G, V.

    The velocity, a decaying sum of gradients, averages out noise and oscillations across narrow valleys.

    .. math::
        g &= \nu x + G, \qquad \beta_t = \beta \text{ if } T > 0 \text{ else } 1, \qquad
        v \leftarrow \alpha v + \beta_t\, g \\
        x &\leftarrow x - R\, v \quad \text{(standard)}, \qquad
        x \leftarrow x - R\, (g + \alpha v) \quad \text{(nesterov)}

    Args:
        learning_rate: R, a number or a Tensor of one element.
        update_count: T, the number of updates before this one, an integer or a Tensor of one element. At 0 the gradient
            enters the velocity with weight 1 instead of ``beta``.
        params: list of X; each has the same shape and type as its G and V, float32 or float64.
        grads: list of G.
        velocities: list of V.
        alpha: decay of the velocity.
        beta: weight of the gradient in the velocity; PyTorch's ``1 - dampening``, not ``1 - alpha``.
        norm_coefficient: :math:`\nu`, coefficient of the squared-norm penalty. The penalty is part of g, and so of
            Nesterov's look-ahead.
        mode: "standard" or "nesterov"; anything else is an error (the reference implementation treats it as nesterov).

    Returns:
        (params, velocities) after the step, two lists.

    Example:
        >>> import numpy as np
        >>> from first_order import momentum_update
        >>> x, g, v = np.array([1.0, 2.0]), np.array([0.5, -1.0]), np.array([2.0, 0.0])
        >>> params, velocities = momentum_update(
        ...     0.1, 1, [x], [g], [v], alpha=0.9, beta=1.0, norm_coefficient=0.0, mode="standard")
        >>> print(params[0], velocities[0])
        [0.77 2.1 ] [ 2.3 -1. ]
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, but got {mode!r}")
    if not len(params) == len(grads) == len(velocities):
        raise ValueError(
            f"params, grads and velocities must be of one length, but got {len(params)}, {len(grads)} and "
            f"{len(velocities)}"
        )
    if len(params) == 0:
        raise ValueError("params must hold at least one tensor, but is empty")
    if on_host(params[0]):
        params, grads, velocities = _checked(params, grads, velocities)
        _check_numbers(learning_rate, update_count, alpha, beta, norm_coefficient)
    new_params, new_velocities = [], []
    for i in range(len(params)):
        dtype = params[i].dtype
        first = scalar(update_count, ms.int64) <= 0
        share = ops.where(first, Tensor(1, dtype), scalar(beta, dtype))
        rate, keep = scalar(learning_rate, dtype), scalar(alpha, dtype)
        gradient = scalar(norm_coefficient, dtype) * params[i] + grads[i]
        velocity = keep * velocities[i] + share * gradient
        direction = velocity
        if mode == "nesterov":
            direction = gradient + keep * velocity
        new_params.append(params[i] - rate * direction)
        new_velocities.append(velocity)
    return new_params, new_velocities


def _checked(params: Any, grads: Any, velocities: Any) -> tuple[list[Tensor], ...]:
    """The three lists as Tensors; raise unless each X, G and V have the same shape and type."""
    types = (ms.float32, ms.float64)
    named = (("params", params), ("grads", grads), ("velocities", velocities))
    lists = tuple([tensor_checks.as_tensor(f"{n}[{i}]", t, types) for i, t in enumerate(ts)] for n, ts in named)
    for i, (x, g, v) in enumerate(zip(*lists, strict=True)):
        tensor_checks.same_kind(**{f"params[{i}]": x, f"grads[{i}]": g, f"velocities[{i}]": v})
    return lists


def _check_numbers(learning_rate: Any, update_count: Any, alpha: Any, beta: Any, norm_coefficient: Any) -> None:
    named = {"learning_rate": learning_rate, "alpha": alpha, "beta": beta, "norm_coefficient": norm_coefficient}
    for name, value in named.items():
        tensor_checks.hyper(name, value, -math.inf)
    _check_count("update_count", update_count)


def _check_count(name: str, value: Any) -> None:
    count = checks.number(name, tensor_checks.scalar_on_host(name, value), -math.inf)
    if count < 0 or count != int(count):
        raise ValueError(f"{name} must be a whole number from 0, but got {count:g}")


class Momentum(FirstOrder):
    r"""Momentum with the numerics of ONNX's operator; with ``beta=1`` it is also PyTorch's and Keras's formula.

    The usual optimizer of image networks. Its state is one number a weight. It needs a tuned learning-rate schedule.

    .. math::
        g = \nu x + G, \quad v \leftarrow \alpha v + \beta_t\, g, \quad
        x \leftarrow x - \eta\, v \;\text{ or }\; x - \eta\, (g + \alpha v)

    Args:
        params: Parameters, (name, Parameter) pairs, or groups as ``nn.Optimizer`` takes them, with ``lr``,
            ``weight_decay`` and ``grad_centralization`` of their own.
        learning_rate: number, list, Tensor, MindSpore schedule, or a function without arguments (:meth:`prepare`).
        alpha: decay of the velocity, number or function. 0.9 averages over about ten steps.
        beta: weight of the gradient in the velocity, number or function. At the first step the weight is 1.
        norm_coefficient: :math:`\nu`, coefficient of the squared-norm penalty on *all* weights; number or function.
        mode: "standard", or "nesterov" for the step with Nesterov's look-ahead.
        weight_decay: the same penalty by ``nn.Optimizer``'s rules: per group, or, without groups, on all parameters but
            those named beta or gamma.
        loss_scale: gradients are divided by it.

    Inputs:
        gradients: one Tensor for each parameter.

    Example:
        >>> import mindspore as ms
        >>> from mindspore import Parameter, Tensor
        >>> from first_order import Momentum
        >>> x = Parameter(Tensor([3.0, -2.0], ms.float32), name="x")
        >>> optimizer = Momentum([x], learning_rate=0.1, alpha=0.5, mode="nesterov")
        >>> for _ in range(50):
        ...     _ = optimizer((2 * x,))  # the gradient of x * x
        >>> print(bool(abs(x.asnumpy()).max() < 1e-3))
        True

    References:
        Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013,
        https://proceedings.mlr.press/v28/sutskever13.html

    .. note::
        The operator supports float32 and float64. Here, float16 weights are computed in float32 and rounded once.
        ``nn.Momentum(use_nesterov=True)`` silently ignores Nesterov on a CPU, and has no beta.
    """

    def __init__(
        self, params: Any, learning_rate: Any, alpha: Any = 0.9, beta: Any = 1.0, norm_coefficient: Any = 0.0,
        mode: str = "standard", weight_decay: Any = 0.0, loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, but got {mode!r}")
        self.alpha = self._hyper("alpha", alpha, checks.at_least_0)
        self.beta = self._hyper("beta", beta, checks.at_least_0)
        self.norm_coefficient = self._hyper("norm_coefficient", norm_coefficient, checks.at_least_0)
        # constants of the graph, so that terms without effect are not compiled
        self.beta_is_one = not tensor_checks.is_supplier(beta) and float(beta) == 1.0
        self.has_norm = tensor_checks.is_supplier(norm_coefficient) or float(norm_coefficient) != 0.0
        self.nesterov = mode == "nesterov"
        self.velocities = self.state_like_parameters("velocity")
        self.fused = ops.ApplyMomentum()
        self.on_cpu = ms.get_context("device_target") == "CPU"

    def construct(self, gradients):
        """Update every weight; return the number of steps done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        gradients = self.unscaled_dense(self.decayed(gradients))
        share = ops.where(self.global_step.reshape(()) == 0, Tensor(1, self.beta.dtype), self.beta)
        # read before the updates: after an update of a weight, the graph would load them again for each weight
        shared = (share, self.alpha.value(), self.norm_coefficient.value())
        map_with_rates(
            self.map_, self.get_lr(), self.is_group_lr, self._move, shared, self.parameters, self.velocities, gradients
        )
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def _move(self, shared, rate, param, velocity, gradient):
        dtype = working_type(param.dtype)
        share, alpha, norm_coefficient = shared
        rate, keep, share = rate.astype(dtype), alpha.astype(dtype), share.astype(dtype)
        g = gradient.astype(rate.dtype)
        if self.has_norm:
            g = norm_coefficient.astype(rate.dtype) * param.astype(rate.dtype) + g
        taken = g
        if not self.beta_is_one:
            taken = share * g
        if self.nesterov or not self._by_kernel(param.dtype):
            v = keep * velocity.astype(rate.dtype) + taken
            direction = v
            if self.nesterov:
                direction = g + keep * v
            ops.assign(velocity, v.astype(velocity.dtype))
            return ops.assign(param, (param.astype(rate.dtype) - rate * direction).astype(param.dtype))
        # MindSpore's fused kernel, for the standard form only: on a CPU it silently ignores Nesterov
        return self.fused(param, velocity, rate, taken, keep)

    def _by_kernel(self, dtype):
        """Whether MindSpore's kernel updates weights of this type.

        On a GPU, MindSpore combines all these kernels of a graph into one. The combined kernel has no float64, and the
        graph fails to compile ("Graph cycle exists") if it also reads a weight.
        """
        if self.on_cpu:
            return dtype != ms.float16
        return dtype == ms.float32 and not (self.has_norm or self.exec_weight_decay)

    # -- the operator's layout -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The operator's inputs except the gradients, under its letters: R, T and the lists X and V.

        R is the rate of the next step. It is missing with a schedule or rates by group, as the operator has one number.
        """
        state: dict[str, Any] = {"T": self.global_step.asnumpy().astype(np.int64).reshape(())}
        if not (self.is_group_lr or self.dynamic_lr):
            state["R"] = self.learning_rate.asnumpy().copy()
        state["X"] = [x.asnumpy().copy() for x in self.parameters]
        state["V"] = [v.asnumpy().copy() for v in self.velocities]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state in :meth:`state_dict`'s layout; R and X may be missing."""
        if not isinstance(state, dict):
            raise TypeError(f"state must be a dictionary in state_dict()'s layout, but got {type(state).__name__}")
        flat, targets = {k: v for k, v in state.items() if k not in ("X", "V")}, {"T": self.global_step}
        if "T" in state:
            _check_count("T", state["T"])
        if "R" in state:
            if self.is_group_lr or self.dynamic_lr:
                raise ValueError(
                    "state has one rate R, but this optimizer has a schedule or rates by group: leave R out"
                )
            tensor_checks.hyper("R", state["R"], 0.0)
            targets["R"] = self.learning_rate
        for letter, parameters in (("V", self.velocities), ("X", self.parameters)):
            if letter == "V" or letter in state:
                targets |= {f"{letter}[{i}]": p for i, p in enumerate(parameters)}
                flat |= {f"{letter}[{i}]": value for i, value in enumerate(state.get(letter, ()))}
        write_all(targets, flat)
