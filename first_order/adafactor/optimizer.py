r"""Adafactor as PyTorch's ``torch.optim.Adafactor`` computes it.

Reference: Shazeer & Stern, Adafactor: adaptive learning rates with sublinear memory cost,
https://arxiv.org/abs/1804.04235 (2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from first_order import tensor_checks
from first_order.adafactor import torch_state_dict
from first_order.adafactor.buckets import BucketStep, make_buckets
from first_order.adafactor.factored_moments import Reductions, adafactor_step, machine_epsilon, state_shapes
from first_order.adafactor.hooks import HookedOptimizer
from first_order.adafactor.param_groups import ParamGroup, read_options, split_group, split_groups, with_rate
from first_order.base import FirstOrder
from first_order.cells import set_unregistered
from first_order.tensors import on_host, scalar, working_type

#: Number of buckets in one loop of the compiled step; a loop over hundreds is too deep for the compiler.
CHUNK = 50


def adafactor_init(param: Any) -> dict[str, Tensor]:
    """The initial state of a tensor: zeros.

    Args:
        param: Tensor or NumPy array, float16, float32 or float64.

    Returns:
        ``row`` [..., R, 1] and ``col`` [..., 1, C] for two or more dimensions, otherwise ``variance`` in the shape of
        ``param``.

    Example:
        >>> import numpy as np
        >>> from first_order import adafactor_init
        >>> print({name: zeros.shape for name, zeros in adafactor_init(np.ones((2, 5, 3))).items()})
        {'row': (2, 5, 1), 'col': (2, 1, 3)}
    """
    param = tensor_checks.as_tensor("param", param, tensor_checks.FLOATS)
    return {name: ops.zeros(shape, param.dtype) for name, shape in state_shapes(param.shape).items()}


def adafactor_update(
    param, state, grad, step, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, maximize=False
):
    r"""One Adafactor step as a function.

    Like Adam, Adafactor divides by the root of a running average of squared gradients. Of a matrix it keeps only the
    averages of its rows and of its columns, so the state is small. The step scales with the root mean square of the
    weights, and is clipped where its own root mean square is too large.

    .. math::
        w_t &= t^{\tau}, \quad \rho_t = \min(\eta, 1 / \sqrt{t}), \quad
        \alpha_t = \max(\epsilon_2, \mathrm{RMS}(x))\, \rho_t, \quad x \leftarrow (1 - \eta \lambda) x \\
        r &\leftarrow r + w_t (\overline{g^2}^{col} - r), \quad c \leftarrow c + w_t (\overline{g^2}^{row} - c), \quad
        V = r c / \max(\overline{r}, \epsilon_1) \\
        u &= g / \sqrt{\max(V, \epsilon_1^2)}, \quad
        x \leftarrow x - \alpha_t\, u / \max(1, \mathrm{RMS}(u) / d)

    Args:
        param: x. The last two axes are factored, batched over any others. With no axis or one, nothing is factored and
            V is the running average itself.
        state: a dictionary as returned by :func:`adafactor_init`.
        grad: g, in x's shape and type.
        step: t, counted from 1, a number or a Tensor of one element; in a graph, which cannot raise, 0 counts as 1.
        lr: :math:`\eta`, the largest relative step; a number or a Tensor of one element.
        beta2_decay: :math:`\tau \le 0`. :math:`t^\tau` is the weight of the new square in the running average, which
            therefore has no bias and averages over more steps as t grows.
        eps: :math:`(\epsilon_1, \epsilon_2)`. :math:`\epsilon_1` bounds the divisors from below, None for the type's
            machine epsilon. :math:`\epsilon_2` bounds the scale of the weights from below, so that zeros can move.
        d: the root mean square of u above which the step is clipped, at least 1.
        weight_decay: :math:`\lambda`, decoupled and multiplied by lr.
        maximize: ascend instead of descend.

    Returns:
        (param, state) after the step.

    Example:
        >>> import numpy as np
        >>> from first_order import adafactor_init, adafactor_update
        >>> x = np.full((2, 3), 2.0)
        >>> x, state = adafactor_update(x, adafactor_init(x), np.ones((2, 3)), step=1, lr=0.1)
        >>> print(x[0], sorted(state))
        [1.8 1.8 1.8] ['col', 'row']
    """
    if on_host(param):
        param, state, grad = _checked(param, state, grad)
        _check_hypers(step, lr, beta2_decay, eps, d, weight_decay, maximize)
    dtype = working_type(param.dtype)
    t = ops.maximum(scalar(step, dtype), Tensor(1, dtype))
    rate, eps1 = scalar(lr, dtype), machine_epsilon(eps[0], param.dtype)
    weight = ops.pow(t, scalar(beta2_decay, dtype))
    rho = ops.minimum(rate, ops.rsqrt(t))
    keep = 1 - rate * scalar(weight_decay, dtype)
    x, g = param.astype(dtype), grad.astype(dtype)
    if maximize:
        g = -g
    names = ("row", "col") if "row" in state else ("variance",)
    old = ()
    for name in names:
        old += (state[name].astype(dtype),)
    x, new = adafactor_step(
        _REDUCTIONS, x, g, old, weight, rho, keep, scalar(eps1, dtype), scalar(eps[1], dtype), scalar(d, dtype)
    )
    if len(names) == 2:
        return x.astype(param.dtype), {"row": new[0].astype(param.dtype), "col": new[1].astype(param.dtype)}
    return x.astype(param.dtype), {"variance": new[0].astype(param.dtype)}


_REDUCTIONS = Reductions()


def _checked(param: Any, state: Any, grad: Any) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """(param, state, grad) as Tensors; raise unless shapes and types fit."""
    param, grad = (tensor_checks.as_tensor(n, t, tensor_checks.FLOATS) for n, t in (("param", param), ("grad", grad)))
    tensor_checks.same_kind(param=param, grad=grad)
    shapes = state_shapes(param.shape)
    if not isinstance(state, dict) or set(state) != set(shapes):
        found = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"state of a tensor of shape {tuple(param.shape)} must be a dictionary with {' and '.join(shapes)}, as "
            f"from adafactor_init(param), but got {found}"
        )
    tensors = {name: tensor_checks.as_tensor(f"state[{name!r}]", state[name], (param.dtype,)) for name in shapes}
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"state[{name!r}] must have shape {tuple(shape)}, but got {tuple(tensors[name].shape)}")
    return param, tensors, grad


def _check_hypers(step: Any, lr: Any, beta2_decay: Any, eps: Any, d: Any, weight_decay: Any, maximize: Any) -> None:
    tensor_checks.hyper("lr", lr, 0.0)
    read_options(beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay, maximize=maximize)
    count = tensor_checks.scalar_on_host("step", step)
    if not count >= 1:
        raise ValueError(f"step must be at least 1, but got {count:g}: the first step is 1")


class Adafactor(HookedOptimizer, FirstOrder):
    r"""Adafactor with the numerics and the interface of ``torch.optim.Adafactor``.

    Adafactor saves memory: its state of an R x C matrix has R + C numbers. Steps are relative to the size of the
    weights, so that one learning rate serves all layers. :func:`adafactor_update` has the formulas.

    Args:
        params: Parameters, (name, Parameter) pairs, or groups: dictionaries with ``params`` and any of ``lr``,
            ``grad_centralization`` and the options below.
        lr: the largest relative step, :math:`\rho_t = \min(lr, 1 / \sqrt{t})`: number, list, Tensor, MindSpore
            schedule, or a function without arguments (:meth:`prepare`).
        beta2_decay: exponent :math:`\tau` of the weight :math:`t^\tau` of a new square in the running average, at
            most 0; values closer to 0 forget faster.
        eps: (eps1, eps2), the lower bounds of the divisors and of the weights' scale. eps1 may be None for the type's
            machine epsilon.
        d: the root mean square above which a step is clipped, at least 1.
        weight_decay: decoupled, multiplied by lr, for every weight.
        foreach: whether tensors of the same group, shape and type are stacked and updated together: True for all,
            False for none, None for those of up to 16384 entries. Stacking saves the fixed costs of operators and takes
            memory for copies of these weights, gradients and steps. The state is stacked in the same way, so a
            MindSpore checkpoint fits only optimizers with the same ``foreach``; ``state_dict`` fits all.
        maximize: ascend instead of descend.
        loss_scale: gradients are divided by it.

    Inputs:
        gradients: one Tensor for each parameter.

    Example:
        >>> import mindspore as ms
        >>> from mindspore import Parameter, Tensor
        >>> from first_order import Adafactor
        >>> x = Parameter(Tensor([[3.0, -2.0]], ms.float32), name="x")
        >>> optimizer = Adafactor([x], lr=0.1)
        >>> loss = optimizer.step(lambda: ((x * x).sum(), (2 * x,)))
        >>> print(x)
        Parameter (name=x, shape=(1, 2), dtype=Float32, requires_grad=True)
        >>> print(x.asnumpy().round(3), optimizer.param_groups[0]["lr"])
        [[ 2.745 -1.745]] 0.1

    References:
        Shazeer & Stern, https://arxiv.org/abs/1804.04235 (2018).

    .. note::
        Some parts of PyTorch's interface have no meaning in MindSpore. ``zero_grad``: gradients are values and are not
        accumulated. ``p.grad is None``: leave the parameter out, or set ``requires_grad`` and take the gradients of the
        others. ``step(closure)`` with backward inside: the closure returns (loss, gradients), as
        ``ms.value_and_grad``'s functions do. ``share_memory``, ``capturable`` and ``fused``: there is one
        implementation.

        In a group of several float types, PyTorch uses the machine epsilon of the first type for all; here each type
        has its own. float16 is computed in float32 and rounded once. ``nn.AdaFactor`` is another algorithm: it adds
        eps1 to the squares, has a first moment, and clips and scales by other rules.
    """

    def __init__(
        self, params: Any, lr: Any = 1e-2, beta2_decay: float = -0.8, eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0, weight_decay: float = 0.0, *, foreach: bool | None = None, maximize: bool = False,
        loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        defaults = read_options(
            beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay, foreach=foreach, maximize=maximize
        )
        splits = split_groups(params)
        if len(splits) > 1:  # a single group uses the optimizer's learning_rate, which THOR writes
            splits = [with_rate(split, lr) for split in splits]
        super().__init__([split.base for split in splits], lr, 0.0, loss_scale)
        set_unregistered(self, _defaults=defaults, _lr=lr, param_groups=[], buckets=[], _steps=[], _moves=[])
        self._make_hooks()
        for split in splits:
            if split.members:
                self._add(split)
        self._bind()

    # -- groups --------------------------------------------------------------------------------------------------

    def _add(self, split: Any) -> None:
        """Create the options, buckets and state of a group."""
        at = {id(p): i for i, p in enumerate(self.parameters)}
        members = [at[id(p)] for p in split.members]
        rate = self.learning_rate[members[0]] if self.is_group_lr else self.learning_rate
        options = self._defaults | read_options(**split.options)
        number = len(self.param_groups)
        group = ParamGroup(split, rate, self._lr, options, self._changed)
        self.param_groups.append(group)
        made = make_buckets(number, members, self.parameters, group["foreach"])
        self.buckets.extend(made)
        self._steps.append(
            Parameter(Tensor(np.zeros(len(members)), self.precision), name=f"adafactor_step.group{number}",
                      requires_grad=False)
        )  # fmt: skip
        products = ms.get_context("device_target") == "CPU"
        self._moves.extend(BucketStep(bucket, self.parameters, products) for bucket in made)

    def _bind(self) -> None:
        """Make groups, buckets and state attributes that the graph reads."""
        self.steps, self.moves = ParameterTuple(self._steps), nn.CellList(self._moves, auto_prefix=False)
        self.chunks = tuple(range(0, len(self._moves), CHUNK))
        self.group_of = tuple(bucket.group for bucket in self.buckets)
        self.first_member = tuple(
            next(b.members[0] for b in self.buckets if b.group == k) for k in range(len(self.param_groups))
        )
        self._changed()

    def _changed(self) -> None:
        """Read the groups' options, which are constants of the compiled step.

        ``changes`` counts the calls, so that THOR notices that its own compiled step is out of date.
        """
        set_unregistered(self, changes=getattr(self, "changes", 0) + 1)
        self.decays = tuple(Tensor(group["beta2_decay"], self.precision) for group in self.param_groups)
        self.shrinks = tuple(Tensor(group["weight_decay"], self.precision) for group in self.param_groups)
        for move, bucket in zip(self._moves, self.buckets, strict=True):
            move.read(self.param_groups[bucket.group])
        set_unregistered(self, _compiled_for=None)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of Parameters with its own options; its first step is step 1.

        Afterwards, compile your own graphs around the optimizer anew.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dictionary, but got {type(param_group).__name__}")
        if self.is_group_params_ordered or "order_params" in param_group:
            raise ValueError(
                "param_group must not be added where order_params number the parameters: give all groups to a new "
                "optimizer, or leave order_params out and gradients in the order of the groups"
            )
        split = with_rate(split_group(param_group), self._lr)
        known = {id(p) for p in self.parameters}
        twice = [p.name for p in split.members if id(p) in known]
        if twice:
            raise ValueError(f"param_group: {twice[0]} is in another group of this optimizer already")
        # makes throw-away optimizers: what is wrong raises here, before this optimizer changes
        Adafactor([split.base | split.options], self._lr)
        groups = [*(group.base() for group in self.param_groups), split.base]
        FirstOrder(groups, self._lr, 0.0, 1.0)
        self.regroup(groups, self._lr)
        for group in self.param_groups:
            index = next(i for i, p in enumerate(self.parameters) if p is group["params"][0])
            group.bind(self.learning_rate[index] if self.is_group_lr else self.learning_rate)
        self._add(split)
        self._bind()

    # -- the step ------------------------------------------------------------------------------------------------

    def __call__(self, gradients: Any) -> Any:
        """Update the weights; return the number of steps done."""
        return self._stepped(super().__call__, (gradients,), {})

    def step(self, closure: Callable[[], tuple[Any, Any]]) -> Any:
        """Update the weights by the gradients of ``closure() -> (loss, gradients)``, and return the loss."""

        def run(closure: Callable[[], tuple[Any, Any]]) -> Any:
            if not callable(closure):
                raise TypeError(
                    f"closure must be a function, but got {closure!r}; call optimizer(gradients) without one"
                )
            answer = closure()
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise TypeError(
                    f"closure must return (loss, gradients), as ms.value_and_grad's functions do, but returned "
                    f"{type(answer).__name__}"
                )
            loss, gradients = answer
            FirstOrder.__call__(self, gradients if isinstance(gradients, tuple | list) else (gradients,))
            return loss

        return self._stepped(run, (closure,), {})

    def construct(self, gradients):
        """Update every weight; return the number of steps done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        gradients = self.unscaled_dense(gradients)
        rates = self.get_lr()
        weights, rhos, keeps = (), (), ()
        for k in range(len(self.steps)):
            t = self.steps[k] + 1
            ops.assign(self.steps[k], t)
            rate = rates[self.first_member[k]] if self.is_group_lr else rates
            rate = rate.astype(t.dtype)
            weights += (ops.pow(t, self.decays[k]),)
            rhos += (ops.minimum(rate, ops.rsqrt(t)),)
            keeps += (1 - rate * self.shrinks[k],)
        for start in self.chunks:
            self._move_chunk(start, gradients, weights, rhos, keeps)
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def _move_chunk(self, start, gradients, weights, rhos, keeps):
        """Update up to CHUNK buckets: the compiler nests the rounds of a loop, and fails if they are too many."""
        for k in range(start, min(start + CHUNK, len(self.moves))):
            group = self.group_of[k]
            self.moves[k](gradients, weights[group], rhos[group], keeps[group])

    # -- PyTorch's layout ----------------------------------------------------------------------------------------

    def state_dict(self, convert: Callable[[np.ndarray], Any] = np.asarray) -> dict[str, Any]:
        """The state in ``torch.optim.Adafactor``'s layout: ``state`` and ``param_groups``.

        Args:
            convert: applied to every array; with ``torch.from_numpy`` PyTorch can load the result.
        """
        for hook in self._save_pre_hooks:
            hook(self)
        state = torch_state_dict.build(self, convert)
        for hook in self._save_post_hooks:
            state = hook(self, state) or state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state in this layout, also one of PyTorch: factors, steps and the groups' options.

        If lr is a list, a schedule or a function, it is kept and continues at the loaded step.
        """
        for hook in self._load_pre_hooks:
            state_dict = hook(self, state_dict) or state_dict
        torch_state_dict.load(self, state_dict)
        for hook in self._load_post_hooks:
            hook(self)

    def memory(self) -> int:
        """Size of the state in bytes."""
        return sum(p.nbytes for p in (*self.steps, *(p for move in self._moves for p in move.factors)))
