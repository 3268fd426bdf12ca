r"""Muon as PyTorch's ``torch.optim.Muon`` computes it, and AdamW as ``torch.optim.AdamW`` for the other weights.

References: Jordan et al., Muon: an optimizer for hidden layers in neural networks,
https://kellerjordan.github.io/posts/muon/ (2024); Liu et al., Muon is scalable for LLM training,
https://arxiv.org/abs/2502.16982 (2025).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, nn

from first_order import checks, tensor_checks
from first_order.base import write_all
from first_order.decoupled_decay import DecoupledDecay, by_kind
from first_order.muon.groups import check_adamw_rate, divide
from first_order.muon.newton_schulz import (  # fmt: skip
    COEFFICIENTS,
    EPS,
    STEPS,
    check_adjustment,
    check_iteration,
    matrix_shape,
    orthogonalized,
    rate_ratio,
)
from first_order.muon.steps import AdamWStep, MatrixStep, averaged
from first_order.tensors import on_host, scalar, working_type

#: Equal matrices are orthogonalized together, up to this many entries. Larger stacks only take memory.
STACK_LIMIT = 2**20
#: Number of stacks in one loop of the compiled step; a loop over hundreds is too deep for the compiler.
CHUNK = 50


def muon_update(
    param, momentum_buffer, grad, learning_rate=1e-3, momentum=0.95, weight_decay=0.1, *, nesterov=True,
    ns_coefficients=COEFFICIENTS, ns_steps=STEPS, eps=EPS, adjust_lr_fn="original", ns_dtype=None,
):  # fmt: skip
    r"""One Muon step of a matrix as a function.

    The running average of the gradient gives a direction. Its singular values are replaced by numbers near 1
    (:func:`newton_schulz`), so that the step has about the same size in every direction of the matrix.

    .. math::
        B &\leftarrow \mu B + (1 - \mu) G, \qquad
        M = (1 - \mu) G + \mu B \text{ with Nesterov's look-ahead, else } B \\
        x &\leftarrow (1 - \eta \lambda) x - \eta\, \rho\, \mathrm{NS}(M), \qquad
        \rho = \sqrt{\max(1, R / C)} \text{ or } 0.2 \sqrt{\max(R, C)}

    Args:
        param: x, [R, C]; a tensor of more axes is the matrix of its first axis by all others. float16, float32 or
            float64; float16 is computed in float32 and rounded once.
        momentum_buffer: B, in the shape of ``param`` and in its working type: float64 of float64, else float32.
        grad: G, in the shape and type of ``param``.
        learning_rate: :math:`\eta`, a number or a Tensor of one element, as are the next two.
        momentum: :math:`\mu`, in [0, 1).
        weight_decay: :math:`\lambda`, decoupled.
        nesterov: look one step ahead.
        ns_coefficients: (a, b, c) of :func:`newton_schulz`.
        ns_steps: its number of steps.
        eps: its lower bound of the norm.
        ns_dtype: its type.
        adjust_lr_fn: :math:`\rho`. "original" is :math:`\sqrt{\max(1, R / C)}`. With "match_rms_adamw", steps are as
            large as AdamW's, and so is the learning rate.

    Returns:
        (param, momentum_buffer) after the step.

    Example:
        >>> import numpy as np
        >>> from first_order import muon_update
        >>> x, zero = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
        >>> grad = np.array([[100.0, 0.0], [0.0, -1.0]], np.float32)
        >>> x, buffer = muon_update(x, zero, grad, learning_rate=0.1, weight_decay=0.0)
        >>> print(x.asnumpy().round(2))  # the step's two entries are about equal
        [[0.93 1.  ]
         [1.   1.07]]
    """
    if on_host(param):
        param, momentum_buffer, grad = _checked(param, momentum_buffer, grad)
        for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
            tensor_checks.hyper(name, value, 0.0)
        tensor_checks.hyper("momentum", momentum, 0.0, 1.0, open_high=True)
        checks.flag("nesterov", nesterov)
        ns_coefficients, ns_steps, eps, ns_dtype = check_iteration(ns_coefficients, ns_steps, eps, ns_dtype)
        adjust_lr_fn = check_adjustment(adjust_lr_fn)
    dtype = working_type(param.dtype)
    rate, mu = scalar(learning_rate, dtype), scalar(momentum, dtype)
    buffer, direction = averaged(momentum_buffer.astype(dtype), grad.astype(dtype), mu, nesterov)
    matrix = direction.reshape(matrix_shape(param.shape))
    step = orthogonalized(matrix, ns_coefficients, ns_steps, eps, ns_dtype).reshape(param.shape)
    keep, ratio = 1 - rate * scalar(weight_decay, dtype), scalar(rate_ratio(param.shape, adjust_lr_fn), dtype)
    moved = param.astype(dtype) * keep - rate * ratio * step
    return moved.astype(param.dtype), buffer.astype(momentum_buffer.dtype)


def _checked(param: Any, buffer: Any, grad: Any) -> tuple[Any, ...]:
    """The three as Tensors; raise unless shapes and types fit."""
    param, grad = (tensor_checks.as_tensor(n, t, tensor_checks.FLOATS) for n, t in (("param", param), ("grad", grad)))
    tensor_checks.same_kind(param=param, grad=grad)
    buffer = tensor_checks.as_tensor("momentum_buffer", buffer, (working_type(param.dtype),))
    if tuple(buffer.shape) != tuple(param.shape):
        raise ValueError(
            f"momentum_buffer must have the shape of param, {tuple(param.shape)}, but got {tuple(buffer.shape)}"
        )
    if param.ndim < 2:
        raise ValueError(
            f"param must have at least two axes, but has shape {tuple(param.shape)}: Muon moves matrices only"
        )
    return param, buffer, grad


class Muon(DecoupledDecay):
    r"""Muon for hidden matrices, with the numerics of ``torch.optim.Muon``, and AdamW for all other weights.

    A step of Muon has about the same size in all directions of a matrix, also in those where gradients are small.
    Vectors, embeddings and the output layer are no such matrices and are AdamW's. :func:`muon_update` has Muon's
    formulas. Those of ``torch.optim.AdamW`` are

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        x &\leftarrow (1 - \eta \lambda) x - \eta\,
        \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    **Which weights are Muon's.** In a group with ``use_muon=True`` all are, and must be matrices. In a group with
    ``use_muon=False`` none is. In other groups, and without groups, those with two axes or more are whose names do not
    contain "embedding". No rule finds the output layer: give it in a group with ``use_muon=False``. :attr:`by_muon`
    has the names.

    Args:
        params: Parameters, (name, Parameter) pairs, or groups as ``nn.Optimizer`` takes them, with ``lr``,
            ``weight_decay``, ``grad_centralization`` and ``use_muon`` of their own.
        learning_rate: number, list, Tensor, MindSpore schedule, or a function without arguments (:meth:`prepare`).
        momentum: decay of the running average of Muon's gradients, in [0, 1); number or function.
        weight_decay: decoupled, by ``nn.Optimizer``'s rules: per group, or, without groups, on all parameters but those
            named beta or gamma.
        nesterov: look one step ahead.
        ns_coefficients, ns_steps, eps: of :func:`newton_schulz`.
        adjust_lr_fn: "original", or "match_rms_adamw" for steps as large as AdamW's; then one learning rate serves
            Muon and AdamW.
        ns_dtype: type of the iteration: None for the working type, or bfloat16 for PyTorch's rounding.
        flatten: whether weights of more than two axes, as of convolutions, are matrices of the first axis by all
            others. If not, they are AdamW's.
        adamw_learning_rate: learning rate of AdamW's weights in groups without ``lr``; number, list, Tensor or
            schedule, None for ``learning_rate``.
        adamw_beta1, adamw_beta2: decay of AdamW's running averages, in [0, 1); number or function.
        adamw_epsilon: added to AdamW's root of the corrected average of squares; number or function.
        adamw_weight_decay: weight decay of AdamW's weights in groups without ``weight_decay``; None for
            ``weight_decay``.
        loss_scale: gradients are divided by it.

    Inputs:
        gradients: one Tensor for each parameter.

    Example:
        >>> import mindspore as ms
        >>> from mindspore import nn, ops
        >>> from first_order import Muon
        >>> ms.set_seed(0)
        >>> net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
        >>> head = net[2].trainable_params()
        >>> body = [p for p in net.trainable_params() if all(p is not q for q in head)]
        >>> optimizer = Muon([{"params": body}, {"params": head, "use_muon": False}], learning_rate=0.02)
        >>> print(optimizer.by_muon)
        ['0.weight']
        >>> x = ops.randn(32, 8)
        >>> def loss_of(x):
        ...     return ((net(x) - x[:, :1]) ** 2).mean()
        >>> differentiate = ms.value_and_grad(loss_of, None, optimizer.parameters)
        >>> first, _ = differentiate(x)
        >>> for _ in range(30):
        ...     loss, gradients = differentiate(x)
        ...     _ = optimizer(gradients)
        >>> print(bool(loss < 0.5 * first))
        True

    References:
        Jordan et al., https://kellerjordan.github.io/posts/muon/ (2024).

    .. note::
        ``torch.optim.Muon`` takes matrices only, and iterates in bfloat16 whatever the weights are. Here the iteration
        has the working type unless ``ns_dtype`` says bfloat16: singular values then differ by up to some percent. The
        original program scales a convolution's rate by its kernel's height over its width; here R and C are those of
        the flattened matrix. float16 weights are computed in float32 and rounded once a step; the state is float32, and
        float64 for float64 weights.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, momentum: Any = 0.95, weight_decay: Any = 0.1,
        nesterov: bool = True, ns_coefficients: Any = COEFFICIENTS, eps: float = EPS, ns_steps: int = STEPS,
        adjust_lr_fn: str | None = "original", loss_scale: float = 1.0, *, ns_dtype: Any = None, flatten: bool = True,
        adamw_learning_rate: Any = None, adamw_beta1: Any = 0.9, adamw_beta2: Any = 0.95, adamw_epsilon: Any = 1e-10,
        adamw_weight_decay: float | None = None,
    ) -> None:  # fmt: skip
        rate = check_adamw_rate(adamw_learning_rate, learning_rate)
        decay = None if adamw_weight_decay is None else checks.at_least_0("adamw_weight_decay", adamw_weight_decay)
        division = divide(params, checks.flag("flatten", flatten), rate, decay)
        super().__init__(division.items, learning_rate, weight_decay, loss_scale)
        self.momentum = self._hyper("momentum", momentum, checks.below_1)
        self.beta1 = self._hyper("adamw_beta1", adamw_beta1, checks.below_1)
        self.beta2 = self._hyper("adamw_beta2", adamw_beta2, checks.below_1)
        self.epsilon = self._hyper("adamw_epsilon", adamw_epsilon, checks.at_least_0)
        self.nesterov = checks.flag("nesterov", nesterov)
        self.iteration = check_iteration(ns_coefficients, ns_steps, eps, ns_dtype)
        self.adjust_lr_fn = check_adjustment(adjust_lr_fn)
        members = [i for i, p in enumerate(self.parameters) if id(p) in division.muon]
        others = [i for i in range(self.param_length) if i not in set(members)]
        self.matrices, self.others = tuple(members), tuple(others)
        self.momentum_buffers = ParameterTuple(self.working_state("muon_momentum", members))
        self.m = ParameterTuple(self.working_state("adamw_m", others))
        self.v = ParameterTuple(self.working_state("adamw_v", others))
        self.moves = nn.CellList([self._stack(stack) for stack in self._stacks()], auto_prefix=False)
        self.chunks = tuple(range(0, len(self.moves), CHUNK))
        kinds = by_kind(self.kind_of, others)
        self.adamw = nn.CellList([self._adamw(kind, at) for kind, at in kinds.items()], auto_prefix=False)

    @property
    def by_muon(self) -> list[str]:
        """Names of the weights that Muon moves; AdamW moves the others."""
        return [self.parameters[i].name for i in self.matrices]

    def _stacks(self) -> list[list[int]]:
        """Muon's parameters in lists of equal shape, type and kind, each of at most STACK_LIMIT entries if it can."""
        alike: dict[Any, list[list[int]]] = {}
        for i in self.matrices:
            p = self.parameters[i]
            lists = alike.setdefault((self.kind_of[i], tuple(p.shape), str(p.dtype)), [[]])
            if lists[-1] and (len(lists[-1]) + 1) * p.size > STACK_LIMIT:
                lists.append([])
            lists[-1].append(i)
        return [each for lists in alike.values() for each in lists]

    def _stack(self, members: list[int]) -> MatrixStep:
        first = self.parameters[members[0]]
        return MatrixStep(
            tuple(members), [self.parameters[i] for i in members],
            [self.momentum_buffers[self.matrices.index(i)] for i in members], self.kind_of[members[0]],
            self.decaying[self.kind_of[members[0]]], self.nesterov, self.iteration,
            rate_ratio(first.shape, self.adjust_lr_fn),
        )  # fmt: skip

    def _adamw(self, kind: int, members: list[int]) -> AdamWStep:
        at = [self.others.index(i) for i in members]
        return AdamWStep(
            tuple(members), [self.parameters[i] for i in members], [self.m[i] for i in at], [self.v[i] for i in at],
            kind, self.decaying[kind],
        )  # fmt: skip

    def construct(self, gradients):
        """Update every weight; return the number of steps done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        gradients = self.unscaled_dense(gradients)
        rates, keeps = self.rates_and_keeps()
        momentum = self.momentum.value()
        for start in self.chunks:
            self._move_chunk(start, gradients, momentum, rates, keeps)
        if self.others:
            betas = (self.beta1.value(), self.beta2.value(), self.epsilon.value())
            count = self.global_step.reshape(()) + 1
            for step in self.adamw:
                step(gradients, count, betas, rates[step.kind], keeps[step.kind])
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def _move_chunk(self, start, gradients, momentum, rates, keeps):
        """Update up to CHUNK stacks: the compiler nests the rounds of a loop, and fails if they are too many."""
        for k in range(start, min(start + CHUNK, len(self.moves))):
            move = self.moves[k]
            move(gradients, momentum, rates[move.kind], keeps[move.kind])

    # -- state under PyTorch's names -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state under PyTorch's names: ``<weight>/momentum_buffer``, or ``<weight>/exp_avg`` and ``/exp_avg_sq``.

        ``global_step`` is PyTorch's ``step`` of every weight.
        """
        state = {name: parameter.asnumpy().copy() for name, parameter in self._named_state().items()}
        return state | {"global_step": self.global_step.asnumpy().astype(np.int64).reshape(())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state in :meth:`state_dict`'s layout."""
        write_all(self._named_state() | {"global_step": self.global_step}, state)

    def _named_state(self) -> dict[str, Parameter]:
        names = [p.name for p in self.parameters]
        found = {
            f"{names[i]}/momentum_buffer": buffer
            for i, buffer in zip(self.matrices, self.momentum_buffers, strict=True)
        }
        for i, m, v in zip(self.others, self.m, self.v, strict=True):
            found |= {f"{names[i]}/exp_avg": m, f"{names[i]}/exp_avg_sq": v}
        return found
