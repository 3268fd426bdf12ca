r"""Momentum as ONNX's ``ai.onnx.preview.training`` operator computes it, version 1.

Reference: https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Momentum.html
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from first_order import checks, tensor_checks
from first_order.base import FirstOrder, write_all
from first_order.tensors import on_host, scalar, working_type

MODES = ("standard", "nesterov")


def momentum_update(learning_rate, update_count, params, grads, velocities, *, alpha, beta, norm_coefficient, mode):
    r"""One Momentum step of several tensors as a function, in the operator's order of inputs R, T, X, G, V.

    A running sum of gradients, each step forgetting a little, carries the weights through noise and narrow valleys.

    .. math::
        g &= \nu x + G, \qquad \beta_t = \beta \text{ if } T > 0 \text{ else } 1, \qquad
        v \leftarrow \alpha v + \beta_t\, g \\
        x &\leftarrow x - R\, v \quad \text{(standard)}, \qquad
        x \leftarrow x - R\, (g + \alpha v) \quad \text{(nesterov)}

    Args:
        learning_rate: R, number or Tensor of one.
        update_count: T, how many updates came before: 0 at the first, and there the gradient enters the velocity whole
            whatever ``beta`` is. Whole number or Tensor of one.
        params: list of X; with its G and V each has one shape and one type, float32 or float64.
        grads: list of G.
        velocities: list of V.
        alpha: what is kept of the velocity.
        beta: what is taken of the gradient; PyTorch's ``1 - dampening``, not ``1 - alpha``.
        norm_coefficient: :math:`\nu`, of the squared-norm penalty. It is part of g, so Nesterov's look-ahead sees it.
        mode: "standard" or "nesterov"; anything else is an error (the reference takes it for nesterov).

    Returns:
        (params, velocities), new, as lists.

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
    """The three lists as Tensors, each triple of one kind."""
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
    r"""Momentum, number for number ONNX's operator, which with ``beta=1`` is also PyTorch's and Keras's formula.

    The workhorse of image networks: one number a weight of state, and with a tuned learning-rate schedule as good in
    the end as anything.

    .. math::
        g = \nu x + G, \quad v \leftarrow \alpha v + \beta_t\, g, \quad
        x \leftarrow x - \eta\, v \;\text{ or }\; x - \eta\, (g + \alpha v)

    Args:
        params: Parameters, (name, Parameter) pairs, or groups as ``nn.Optimizer`` takes them, with ``lr``,
            ``weight_decay`` and ``grad_centralization`` of their own.
        learning_rate: number, list, Tensor, MindSpore schedule, or a function without arguments
            (:meth:`prepare`).
        alpha: what is kept of the velocity, number or function. 0.9 averages over about ten steps.
        beta: what is taken of the gradient, except at the first step, which takes all; number or function.
        norm_coefficient: :math:`\nu`, of the squared-norm penalty on *all* weights; number or function.
        mode: "standard", or "nesterov": the gradient as if the velocity had been followed already.
        weight_decay: as norm_coefficient, by ``nn.Optimizer``'s rules: per group, and without groups not on parameters
            named beta or gamma.
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
        The operator knows float32 and float64; float16 weights are computed in float32 here and rounded once.
        ``nn.Momentum(use_nesterov=True)`` silently leaves Nesterov out on a CPU, and has no beta.
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
        # compiled away where they change nothing
        self.takes_all = not tensor_checks.is_supplier(beta) and float(beta) == 1.0
        self.has_norm = tensor_checks.is_supplier(norm_coefficient) or float(norm_coefficient) != 0.0
        self.nesterov = mode == "nesterov"
        self.velocities = self.state_like_parameters("velocity")
        self.fused = ops.ApplyMomentum()
        self.on_cpu = ms.get_context("device_target") == "CPU"

    def construct(self, gradients):
        """Move every weight; answers with the steps done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        gradients = self.unscaled(self.decayed(gradients))
        share = ops.where(self.global_step.reshape(()) == 0, Tensor(1, self.beta.dtype), self.beta)
        # read once: a Parameter that is read after an update of a weight is loaded anew for each weight
        shared = (share, self.alpha.value(), self.norm_coefficient.value())
        self.map_with_rates(self._move, shared, self.parameters, self.velocities, gradients)
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def _move(self, shared, rate, param, velocity, gradient):
        dtype = working_type(param.dtype)
        share, alpha, norm_coefficient = shared
        rate, keep, share = rate.astype(dtype), alpha.astype(dtype), share.astype(dtype)
        g = gradient.astype(rate.dtype)
        if self.has_norm:
            g = norm_coefficient.astype(rate.dtype) * param.astype(rate.dtype) + g
        taken = g
        if not self.takes_all:
            taken = share * g
        if self.nesterov or not self._by_kernel(param.dtype):
            v = keep * velocity.astype(rate.dtype) + taken
            direction = v
            if self.nesterov:
                direction = g + keep * v
            ops.assign(velocity, v.astype(velocity.dtype))
            return ops.assign(param, (param.astype(rate.dtype) - rate * direction).astype(param.dtype))
        # the standard form is MindSpore's kernel, in one pass; its Nesterov is silently ignored on a CPU
        return self.fused(param, velocity, rate, taken, keep)

    def _by_kernel(self, dtype):
        """Whether MindSpore's kernel moves weights of this type.

        On a GPU MindSpore makes one kernel of all of a graph's, which knows no float64, and fails to compile where the
        graph reads a weight too ("Graph cycle exists": 2.10).
        """
        if self.on_cpu:
            return dtype != ms.float16
        return dtype == ms.float32 and not (self.has_norm or self.exec_weight_decay)

    # -- the operator's layout -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """R, T and the lists X and V, by the operator's letters: its inputs but for the gradients.

        R is the rate of the coming step; with groups of different rates it is missing, as the operator has one only.
        """
        state: dict[str, Any] = {"T": self.global_step.asnumpy().astype(np.int64).reshape(())}
        if not (self.is_group_lr or self.dynamic_lr):
            state["R"] = self.learning_rate.asnumpy().copy()
        state["X"] = [x.asnumpy().copy() for x in self.parameters]
        state["V"] = [v.asnumpy().copy() for v in self.velocities]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over T, V, and where they are there R and X, in :meth:`state_dict`'s layout."""
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
