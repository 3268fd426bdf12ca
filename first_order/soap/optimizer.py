r"""SOAP as its authors' program computes it: Adam in the slowly changing eigenbases of Shampoo's preconditioners.

Reference: Vyas et al., SOAP: improving and stabilizing Shampoo using Adam, https://arxiv.org/abs/2409.11321 (2024).
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from first_order import checks
from first_order.adam import bias_correction
from first_order.base import write_all
from first_order.decoupled_decay import DecoupledDecay
from first_order.soap.eigenbases import adam_in_basis, axes_of, merged_shape, renewed
from first_order.soap.update import averaged, check_shapes, started
from first_order.tensors import working_type

#: Number of weights in one loop of the compiled step; a loop over hundreds is too deep for the compiler.
CHUNK = 50


class SOAP(DecoupledDecay):
    r"""SOAP: Adam in the eigenbases of Shampoo's preconditioners, with the numerics of the authors' program.

    It is a second-order method without damping: where the curvature's eigenvectors are known, Adam's scaling by
    coordinates is a scaling by eigenvectors. Weights of one axis, and axes that are too long, are not rotated, so that
    vectors are moved as by Adam. :func:`soap_update` has the formulas.

    The first call starts the eigenbases and moves nothing.

    Args:
        params: Parameters, (name, Parameter) pairs, or groups as ``nn.Optimizer`` takes them, with ``lr``,
            ``weight_decay`` and ``grad_centralization`` of their own.
        learning_rate: number, list, Tensor, MindSpore schedule, or a function without arguments (:meth:`prepare`).
        beta1, beta2: decay of the running averages of the gradient and of its square, in [0, 1); number or function.
        shampoo_beta: decay of Shampoo's matrices, in [0, 1); number or function, None for ``beta2``.
        epsilon: bounds the step in directions where gradients are tiny, number or function.
        weight_decay: decoupled, by ``nn.Optimizer``'s rules: per group, or, without groups, on all parameters but those
            named beta or gamma.
        precondition_frequency: steps between two renewals of the eigenbases. Fewer are better and dearer.
        max_precond_dim: an axis of more entries has no eigenbasis: it would take two matrices of its size squared, and
            a QR of one.
        merge_dims: merge neighbouring axes while their product is at most ``max_precond_dim``. A kernel [O, I, k, k]
            then has fewer and larger eigenbases; [O, I k k] where O I is larger than the limit and I k k is not.
        precondition_1d: rotate vectors too.
        normalize_grads: divide each weight's step by its root mean square, before the learning rate.
        correct_bias: correct the bias of both moments, as Adam does.
        loss_scale: gradients are divided by it.

    Inputs:
        gradients: one Tensor for each parameter.

    Example:
        >>> import mindspore as ms
        >>> from mindspore import Parameter, Tensor
        >>> from first_order import SOAP
        >>> x = Parameter(Tensor([[3.0, -2.0], [1.0, 0.5]], ms.float32), name="x")
        >>> optimizer = SOAP([x], learning_rate=0.1, beta1=0.8, weight_decay=0.0)
        >>> for _ in range(100):
        ...     _ = optimizer((2 * x,))  # the gradient of the sum of squares
        >>> print(bool(abs(x.asnumpy()).max() < 0.1))
        True

    References:
        Vyas et al., https://arxiv.org/abs/2409.11321 (2024).

    .. note::
        The authors' program keeps state and eigenbases in the type of the weights' gradients. Here they are float32,
        and float64 for float64 weights. Axes of one entry have no matrices here. There is no ``data_format``: axes are
        merged in the order in which a weight has them.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 3e-3, beta1: Any = 0.95, beta2: Any = 0.95, shampoo_beta: Any = None,
        epsilon: Any = 1e-8, weight_decay: Any = 0.01, loss_scale: float = 1.0, *, precondition_frequency: int = 10,
        max_precond_dim: int = 10000, merge_dims: bool = False, precondition_1d: bool = False,
        normalize_grads: bool = False, correct_bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        if ms.get_context("device_target") == "Ascend":
            raise NotImplementedError(
                "SOAP needs eigh, which MindSpore has for CPU and GPU only, but the device is an Ascend"
            )
        self.beta1 = self._hyper("beta1", beta1, checks.below_1)
        self.beta2 = self._hyper("beta2", beta2, checks.below_1)
        self.shampoo_beta = (
            self.beta2 if shampoo_beta is None else self._hyper("shampoo_beta", shampoo_beta, checks.below_1)
        )
        self.epsilon = self._hyper("epsilon", epsilon, checks.at_least_0)
        self.precondition_frequency = checks.check_int("precondition_frequency", precondition_frequency, 1)
        self.shapes = check_shapes(max_precond_dim, merge_dims, precondition_1d)
        self.normalize_grads = checks.flag("normalize_grads", normalize_grads)
        self.correct_bias = checks.flag("correct_bias", correct_bias)
        self.m = ParameterTuple(self.working_state("soap_m", range(self.param_length)))
        self.v = ParameterTuple(self.working_state("soap_v", range(self.param_length)))
        self.moves = nn.CellList([self._step_of(i) for i in range(self.param_length)], auto_prefix=False)
        self.chunks = tuple(range(0, self.param_length, CHUNK))
        self.rotating = tuple(i for i, move in enumerate(self.moves) if move.axes)
        self.rotating_chunks = tuple(range(0, len(self.rotating), CHUNK))

    def _step_of(self, i: int) -> RotatedStep:
        largest, merge, vectors = self.shapes
        weight = self.parameters[i]
        shape = merged_shape(weight.shape, largest, merge)
        axes = axes_of(shape, largest, vectors, weight.ndim)
        return RotatedStep(
            weight, self.m[i], self.v[i], shape, axes, self.normalize_grads, self.decaying[self.kind_of[i]]
        )

    def construct(self, gradients):
        """Update every weight, or start the eigenbases in the first call; return the number of calls done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        self._start_or_move(self.unscaled_dense(gradients), self.global_step.reshape(()))
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    # The branches below depend on a Tensor. Each method returns one, as branches without a result sometimes do not
    # compile.

    def _start_or_move(self, gradients, t):
        """Start the eigenbases, or update every weight."""
        if t == 0:
            return self._start(gradients, t)
        return self._move_all(gradients, t)

    def _start(self, gradients, t):
        """Start the eigenbases."""
        share = self.shampoo_beta.value()
        for start in self.rotating_chunks:
            self._start_chunk(start, gradients, share)
        return t

    def _move_all(self, gradients, t):
        """Update every weight, and renew the eigenbases when it is time."""
        rates, keeps = self.rates_and_keeps()
        betas = (self.beta1.value(), self.beta2.value(), self.epsilon.value(), self.shampoo_beta.value())
        correction = ops.ones_like(betas[0])
        if self.correct_bias:
            correction = bias_correction(t, betas[0], betas[1], betas[0].dtype)
        for start in self.chunks:
            self._move_chunk(start, gradients, rates, keeps, correction, betas)
        if t % self.precondition_frequency == 0:
            return self._renew(t)
        return t

    def _renew(self, t):
        """Renew the eigenbases."""
        for start in self.rotating_chunks:
            self._renew_chunk(start)
        return t

    def _start_chunk(self, start, gradients, share):
        """Start the eigenbases of up to CHUNK weights."""
        for k in range(start, min(start + CHUNK, len(self.rotating))):
            i = self.rotating[k]
            self.moves[i].start(gradients[i], share)

    def _move_chunk(self, start, gradients, rates, keeps, correction, betas):
        """Update up to CHUNK weights: the compiler nests the rounds of a loop, and fails if they are too many."""
        for i in range(start, min(start + CHUNK, self.param_length)):
            kind = self.kind_of[i]
            self.moves[i](gradients[i], rates[kind] * correction, keeps[kind], betas)

    def _renew_chunk(self, start):
        """Renew the eigenbases of up to CHUNK weights."""
        for k in range(start, min(start + CHUNK, len(self.rotating))):
            self.moves[self.rotating[k]].renew()

    # -- state under the names of the authors' program -----------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state under the authors' names: ``<weight>/exp_avg`` and ``/exp_avg_sq``, ``/GG0``, ``/Q0`` by axis.

        As in their program, ``exp_avg`` and ``exp_avg_sq`` are in the eigenbases. ``global_step`` counts calls; their
        ``step`` of every weight is one less.
        """
        state = {name: parameter.asnumpy().copy() for name, parameter in self._named_state().items()}
        return state | {"global_step": self.global_step.asnumpy().astype(np.int64).reshape(())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state in :meth:`state_dict`'s layout."""
        write_all(self._named_state() | {"global_step": self.global_step}, state)

    def _named_state(self) -> dict[str, Parameter]:
        found: dict[str, Parameter] = {}
        for weight, m, v, move in zip(self.parameters, self.m, self.v, self.moves, strict=True):
            found |= {f"{weight.name}/exp_avg": m, f"{weight.name}/exp_avg_sq": v}
            for k, axis in enumerate(move.axes):
                found |= {f"{weight.name}/GG{axis}": move.grams[k], f"{weight.name}/Q{axis}": move.bases[k]}
        return found

    def memory(self) -> int:
        """Size of the state in bytes."""
        return sum(p.nbytes for p in self._named_state().values())


class RotatedStep(nn.Cell):
    """SOAP's step of one weight, with Shampoo's matrices and their eigenbases.

    Args:
        weight: the weight.
        m: its first moment, in the eigenbases.
        v: its second moment, in the eigenbases.
        shape: the weight's shape with merged axes.
        axes: axes of ``shape`` that have an eigenbasis.
        normalize: whether the step has a root mean square of 1 before the learning rate.
        decays: whether the weight decays.
    """

    def __init__(self, weight, m, v, shape, axes, normalize, decays):
        super().__init__(auto_prefix=False)
        self.decays, self.fused = decays, ops.Adam()
        self.plain = not axes and not normalize and weight.dtype == ms.float32
        self.weight, self.m, self.v = weight, m, v
        self.shape, self.axes, self.normalize, self.working = shape, axes, normalize, working_type(weight.dtype)
        kind = np.float64 if weight.dtype == ms.float64 else np.float32
        self.grams, self.bases = (), ()
        if axes:
            self.grams = ParameterTuple([
                Parameter(Tensor(np.zeros((shape[k], shape[k]), kind)), name=f"soap_gram{k}.{weight.name}",
                          requires_grad=False) for k in axes
            ])  # fmt: skip
            self.bases = ParameterTuple([
                Parameter(Tensor(np.eye(shape[k], dtype=kind)), name=f"soap_basis{k}.{weight.name}",
                          requires_grad=False) for k in axes
            ])  # fmt: skip

    def start(self, gradient, share):
        """Start Shampoo's matrices and the eigenbases; ``share`` is the decay of the matrices."""
        self._write_bases(started(self._averaged(gradient, share)))

    def construct(self, gradient, rate, keep, betas):
        """Move the weight, then take the gradient into Shampoo's matrices; ``betas`` are beta1, beta2, eps, share."""
        working, shape = self.working, self.shape
        beta1, beta2, epsilon, share = betas
        if self.plain:  # MindSpore's fused kernel; powers of 0, for the rate has the bias correction
            none = Tensor(0, ms.float32)
            moved = self.fused(
                self.weight, self.m, self.v, none, none, rate.astype(working), beta1.astype(working),
                beta2.astype(working), epsilon.astype(working), gradient.astype(working),
            )  # fmt: skip
            if self.decays:
                return ops.assign(self.weight, self.weight * keep.astype(working))
            return moved
        x, m, v = adam_in_basis(
            self.weight.astype(working).reshape(shape), self.m.reshape(shape), self.v.reshape(shape),
            gradient.astype(working).reshape(shape), self.axes, self.bases, rate.astype(working), keep.astype(working),
            beta1.astype(working), beta2.astype(working), epsilon.astype(working), self.normalize,
        )  # fmt: skip
        ops.assign(self.m, m.reshape(self.m.shape))
        ops.assign(self.v, v.reshape(self.v.shape))
        if self.axes:
            self._averaged(gradient, share)
        return ops.assign(self.weight, x.reshape(self.weight.shape).astype(self.weight.dtype))

    def renew(self):
        """Let each basis make one step towards the eigenvectors, and both moments go along."""
        m, v, bases = renewed(self.m.reshape(self.shape), self.v.reshape(self.shape), self.axes, self.grams, self.bases)
        ops.assign(self.m, m.reshape(self.m.shape))
        ops.assign(self.v, v.reshape(self.v.shape))
        self._write_bases(bases)

    def _averaged(self, gradient, share):
        """Take the gradient into Shampoo's matrices, and return these."""
        g = gradient.astype(self.working).reshape(self.shape)
        new = averaged(self.grams, g, self.axes, share.astype(self.working))
        for k in range(len(self.axes)):
            ops.assign(self.grams[k], new[k])
        return new

    def _write_bases(self, bases):
        for k in range(len(self.axes)):
            ops.assign(self.bases[k], bases[k])
