r"""Adam as DirectML's operator and TensorFlow's AdamOptimizer compute it.

Both use the "epsilon hat" form: epsilon is added to the root of the uncorrected second moment.

Reference: Kingma & Ba, Adam: a method for stochastic optimization, https://arxiv.org/abs/1412.6980 (2015), section 2.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order import checks, tensor_checks
from first_order.base import FirstOrder, map_with_rates, write_all
from first_order.sparse_gradients import check_rows, dense_gradient, seen_rows
from first_order.tensors import on_host, scalar, working_type


def adam_update(
    param, m, v, grad, step, learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, use_nesterov=False, *,
    in_place=False,
):  # fmt: skip
    r"""One Adam step as a function, DirectML's ``DML_ADAM_OPTIMIZER_OPERATOR``.

    The running average of the gradient gives the direction, and the running average of its square gives the scale.
    Both start at zero; :math:`\alpha_t` contains the bias correction.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        \alpha_t &= \eta \sqrt{1 - \beta_2^t} / (1 - \beta_1^t) \\
        x &\leftarrow x - \alpha_t\, m / (\sqrt{v} + \epsilon)

    Args:
        param: x. All four tensors have the same shape and type: float16, float32 or float64 (the operator has no
            float64). float16 is computed in float32 and rounded once.
        m: running average of the gradients.
        v: running average of their squares.
        grad: g.
        step: :math:`t`, counted from 1 by the caller; a number or a Tensor of one element, integer or float. The
            operator's documentation starts at 0, where the formula is 0 / 0. On the host, 0 is an error; in a graph,
            which cannot raise, it counts as 1.
        learning_rate: :math:`\eta`. Like beta1, beta2 and epsilon it is a number or a Tensor of one element.
        beta1: decay of m, in [0, 1).
        beta2: decay of v, in [0, 1].
        epsilon: bounds the step where gradients are tiny. It is added to the root of the uncorrected v and therefore
            acts like :math:`\epsilon / \sqrt{1 - \beta_2^t}` in the paper's first form.
        use_nesterov: use :math:`\beta_1 m + (1 - \beta_1) g` instead of m as the direction, like TensorFlow's kernel.
            The operator has no such option.
        in_place: write the results into ``param``, ``m`` and ``v``, which must be Parameters, and return these.

    Returns:
        (param, m, v) after the step.

    Example:
        >>> import numpy as np
        >>> from first_order import adam_update
        >>> x, zero = np.array([1.0, -2.0], np.float32), np.zeros(2, np.float32)
        >>> x, m, v = adam_update(x, zero, zero, grad=np.array([3.0, -4.0], np.float32), step=1, learning_rate=0.1)
        >>> print(x)
        [ 0.9 -1.9]
    """
    if on_host(param):
        param, m, v, grad = _tensors(param=param, m=m, v=v, grad=grad)
        _check_hypers(step, learning_rate, beta1, beta2, epsilon)
        if in_place:
            tensor_checks.all_parameters("param, m and v", param, m, v)
    new = _moved(param, m, v, grad, step, learning_rate, beta1, beta2, epsilon, use_nesterov)
    return _written(param, m, v, new) if in_place else new


def sparse_adam_update(
    param, m, v, values, indices, step, learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, use_nesterov=False,
    *, lazy=False, in_place=False,
):  # fmt: skip
    r"""One Adam step for a gradient given by rows, TensorFlow's sparse apply.

    Row ``indices[i]`` of the gradient is ``values[i]``. Rows with the same index are summed *before* squaring, and all
    other rows are zero. The moments of every row decay and every row moves, also rows without a gradient. The result
    equals :func:`adam_update` with the dense gradient.

    Args:
        param: x, [rows, ...].
        m: running average of the gradients, [rows, ...].
        v: running average of their squares, [rows, ...].
        values: [n, ...], the gradient's rows.
        indices: [n], int32 or int64, each in [0, rows).
        step: as in :func:`adam_update`.
        learning_rate: as in :func:`adam_update`.
        beta1: as in :func:`adam_update`.
        beta2: as in :func:`adam_update`.
        epsilon: as in :func:`adam_update`.
        use_nesterov: as in :func:`adam_update`.
        lazy: decay and move only the rows listed in ``indices``. This is a different optimizer, often called LazyAdam:
            rare rows keep their moments until they occur again.
        in_place: as in :func:`adam_update`.

    Returns:
        (param, m, v) after the step.

    Example:
        >>> import numpy as np
        >>> from first_order import sparse_adam_update
        >>> x, zero = np.zeros((3, 1), np.float32), np.zeros((3, 1), np.float32)
        >>> x, m, v = sparse_adam_update(x, zero, zero, np.ones((2, 1), np.float32), np.array([2, 2]), step=1)
        >>> print(m.asnumpy().round(3).T)
        [[0.  0.  0.2]]
    """
    if on_host(param):
        param, m, v = _tensors(param=param, m=m, v=v)
        values, indices = check_rows("param", param, values, indices)
        _check_hypers(step, learning_rate, beta1, beta2, epsilon)
        if in_place:
            tensor_checks.all_parameters("param, m and v", param, m, v)
    grad = dense_gradient(param, values, indices)
    new = _moved(param, m, v, grad, step, learning_rate, beta1, beta2, epsilon, use_nesterov)
    if lazy:
        new = _where_seen(seen_rows(param, indices), new, param, m, v)
    return _written(param, m, v, new) if in_place else new


def _moved(param, m, v, grad, step, learning_rate, beta1, beta2, epsilon, use_nesterov):
    """(param, m, v) after a step; each hyper-parameter is a number or a Tensor of one element."""
    dtype = working_type(param.dtype)
    beta1, beta2 = scalar(beta1, dtype), scalar(beta2, dtype)
    rate = scalar(learning_rate, dtype) * bias_correction(step, beta1, beta2, dtype)
    return adam_step(param, m, v, grad, rate, beta1, beta2, scalar(epsilon, dtype), use_nesterov)


def bias_correction(step, beta1, beta2, dtype):
    """sqrt(1 - beta2^t) / (1 - beta1^t); t = 0 counts as 1."""
    t = ops.maximum(scalar(step, dtype), Tensor(1, dtype))
    return ops.sqrt(weight_of_average(beta2, t)) / weight_of_average(beta1, t)


def weight_of_average(beta, t):
    """1 - beta^t, the sum of the weights in a running average of t values.

    It is computed as -expm1(t log beta): the plain difference cancels where beta is close to 1.
    """
    return -ops.expm1(t * ops.log(beta))


def moments_after(m, v, gradient, beta1, beta2):
    """The running averages of the gradient and of its square after a step; all have one type."""
    # Not m + (g - m)(1 - beta1): if the old moment is far larger than the new one, that form cancels and its rounding
    # error is relative to the old moment.
    return beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * (gradient * gradient)


def adam_step(param, m, v, grad, rate, beta1, beta2, epsilon, use_nesterov):
    """(param, m, v) after a step; ``rate`` includes the bias correction, and all scalars have the working type."""
    dtype = rate.dtype
    m32, v32, g = m.astype(dtype), v.astype(dtype), grad.astype(dtype)
    m32, v32 = moments_after(m32, v32, g, beta1, beta2)
    direction = m32
    if use_nesterov:
        direction = beta1 * m32 + (1 - beta1) * g
    moved = param.astype(dtype) - rate * direction / (ops.sqrt(v32) + epsilon)
    return moved.astype(param.dtype), m32.astype(m.dtype), v32.astype(v.dtype)


def _dense(param, gradient):
    """The gradient as one dense tensor; it may be dense, a pair (values, indices) or a RowTensor."""
    if isinstance(gradient, tuple):
        return dense_gradient(param, gradient[0], gradient[1])
    if hasattr(gradient, "indices"):  # a RowTensor, which exists only in graphs
        return dense_gradient(param, gradient.values, gradient.indices)
    return gradient


def _where_seen(seen, new, param, m, v):
    """(param, m, v): the new values where ``seen`` is True, the old values elsewhere."""
    return ops.where(seen, new[0], param), ops.where(seen, new[1], m), ops.where(seen, new[2], v)


def _written(param, m, v, new):
    """Assign the new values to the Parameters and return these."""
    return ops.assign(param, new[0]), ops.assign(m, new[1]), ops.assign(v, new[2])


def _tensors(**values: Any) -> list[Tensor]:
    """The values as Tensors, in the order given; raise unless they have the same shape and float type."""
    tensors = {name: tensor_checks.as_tensor(name, value, tensor_checks.FLOATS) for name, value in values.items()}
    tensor_checks.same_kind(**tensors)
    return list(tensors.values())


def _check_hypers(step: Any, learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> None:
    tensor_checks.hyper("learning_rate", learning_rate, 0.0)
    tensor_checks.hyper("beta1", beta1, 0.0, 1.0, open_high=True)  # the bias correction divides by 1 - beta1^step
    tensor_checks.hyper("beta2", beta2, 0.0, 1.0)
    tensor_checks.hyper("epsilon", epsilon, 0.0)
    count = tensor_checks.scalar_on_host("step", step)
    if not count >= 1:
        raise ValueError(
            f"step must be at least 1, but got {count:g}: the bias correction divides by 1 - beta1^step. Count the "
            f"first step as 1 (the operator's documentation says 0, where its formula is 0 / 0)"
        )


class Adam(FirstOrder):
    r"""Adam with the numerics of TensorFlow's ``AdamOptimizer``.

    The step of each weight is about the learning rate, whatever the scale of its gradient. Adam needs little tuning;
    its state takes twice the memory of the weights.

    .. math::
        \eta_t = \eta \sqrt{1 - \beta_2^t} / (1 - \beta_1^t), \quad
        m \mathrel{+}= (g - m)(1 - \beta_1), \quad v \mathrel{+}= (g^2 - v)(1 - \beta_2), \quad
        x \mathrel{-}= \eta_t\, m / (\sqrt{v} + \epsilon)

    Args:
        params: Parameters, (name, Parameter) pairs, or groups as ``nn.Optimizer`` takes them, with ``lr``,
            ``weight_decay`` and ``grad_centralization`` of their own.
        learning_rate: number, list, Tensor, MindSpore schedule, or a function without arguments (:meth:`prepare`).
        beta1, beta2: decay of the running averages of the gradient and of its square, in [0, 1); number or function.
            Values closer to 1 give smoother and slower averages.
        epsilon: bounds the step where gradients are tiny, number or function. It is added outside the root and is not
            corrected for bias.
        use_nesterov: use :math:`\beta_1 m + (1 - \beta_1) g` instead of :math:`m`.
        lazy: with a sparse gradient, decay and move only the rows that occur in it (LazyAdam).
        weight_decay: adds weight_decay * x to g (L2), by ``nn.Optimizer``'s rules; TensorFlow's optimizer has none.
        loss_scale: gradients are divided by it.

    Inputs:
        gradients: one for each parameter: a Tensor, a pair (values, indices) as in :func:`sparse_adam_update`, or, in
        a graph, the RowTensor of a sparse embedding.

    The powers of the betas are part of the state. They advance after all weights have moved, so the first step uses
    t = 1.

    Example:
        >>> import mindspore as ms, numpy as np
        >>> from mindspore import Parameter, Tensor
        >>> from first_order import Adam
        >>> x = Parameter(Tensor([3.0, -2.0], ms.float32), name="x")
        >>> optimizer = Adam([x], learning_rate=0.1)
        >>> for _ in range(100):
        ...     _ = optimizer((2 * x,))  # the gradient of x * x
        >>> print(bool(abs(x.asnumpy()).max() < 0.1))
        True

    References:
        Kingma & Ba, https://arxiv.org/abs/1412.6980 (2015).

    .. note::
        float16 weights are computed in float32 and rounded once a step; TensorFlow rounds after every operation and
        keeps the powers in float16. ``nn.Adam`` computes the same formula, although its documentation states another
        one. It has no float64 and no functions as hyper-parameters, and after a step in PYNATIVE_MODE it ignores a
        checkpoint that is loaded.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8,
        use_nesterov: bool = False, weight_decay: Any = 0.0, loss_scale: float = 1.0, *, lazy: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        self.beta1 = self._hyper("beta1", beta1, checks.below_1)
        self.beta2 = self._hyper("beta2", beta2, checks.below_1)
        self.epsilon = self._hyper("epsilon", epsilon, checks.at_least_0)
        self.use_nesterov = checks.flag("use_nesterov", use_nesterov)
        self.lazy = checks.flag("lazy", lazy)
        self.m = self.state_like_parameters("adam_m")
        self.v = self.state_like_parameters("adam_v")
        self.beta1_power = self._power("beta1_power", self.beta1)
        self.beta2_power = self._power("beta2_power", self.beta2)
        self.fused = ops.Adam(use_nesterov=self.use_nesterov)

    def _power(self, name: str, beta: Tensor) -> Parameter:
        """The Parameter beta^t of the next step, initially beta^1."""
        return Parameter(Tensor(beta.asnumpy().copy()), name=name, requires_grad=False)

    def construct(self, gradients):
        """Update every weight; return the number of steps done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        dense = self.map_(_dense, self.parameters, gradients)
        dense = self.unscaled(self.decayed(dense))
        correction = ops.sqrt(1 - self.beta2_power) / (1 - self.beta1_power)
        shared = (self.beta1_power, self.beta2_power, correction)
        map_with_rates(
            self.map_, self.get_lr(), self.is_group_lr, self._move, shared, self.parameters, self.m, self.v, gradients,
            dense,
        )  # fmt: skip
        ops.assign(self.beta1_power, self.beta1_power * self.beta1)
        ops.assign(self.beta2_power, self.beta2_power * self.beta2)
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def _move(self, shared, rate, param, m, v, given, gradient):
        beta1_power, beta2_power, correction = shared
        sparse = isinstance(given, tuple) or hasattr(given, "indices")
        if param.dtype == ms.float32 and not (self.lazy and sparse):
            # MindSpore's fused kernel computes this formula, Nesterov included
            return self.fused(
                param, m, v, beta1_power.astype(ms.float32), beta2_power.astype(ms.float32), rate.astype(ms.float32),
                self.beta1.astype(ms.float32), self.beta2.astype(ms.float32), self.epsilon.astype(ms.float32),
                gradient.astype(ms.float32),
            )  # fmt: skip
        dtype = working_type(param.dtype)
        new = adam_step(
            param, m, v, gradient, (rate * correction).astype(dtype), self.beta1.astype(dtype),
            self.beta2.astype(dtype), self.epsilon.astype(dtype), self.use_nesterov,
        )  # fmt: skip
        if self.lazy and sparse:
            rows = given[1] if isinstance(given, tuple) else given.indices
            new = _where_seen(seen_rows(param, rows), new, param, m, v)
        return _written(param, m, v, new)

    def _check_one(self, parameter: Parameter, gradient: Any) -> bool:
        if not isinstance(gradient, tuple):
            return super()._check_one(parameter, gradient)
        if len(gradient) != 2:
            raise ValueError(
                f"a sparse gradient of {parameter.name} must be a pair (values, indices), but got {len(gradient)} items"
            )
        if not all(isinstance(part, Tensor) for part in gradient):
            raise TypeError(
                f"values and indices of {parameter.name} must be Tensors, but got "
                f"{' and '.join(type(part).__name__ for part in gradient)}"
            )
        check_rows(parameter.name, parameter, *gradient)
        return True

    # -- TensorFlow's layout -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state under TensorFlow's variable names: the beta powers and the slots of each weight.

        ``<weight>/Adam`` is m and ``<weight>/Adam_1`` is v, as ``tf.compat.v1.train.AdamOptimizer`` names them.
        ``global_step`` is the step count that learning-rate schedules read.
        """
        state = {name: getattr(self, name).asnumpy().copy() for name in ("beta1_power", "beta2_power")}
        state["global_step"] = self.global_step.asnumpy().astype(np.int64).reshape(())
        for param, m, v in zip(self.parameters, self.m, self.v, strict=True):
            state[f"{param.name}/Adam"], state[f"{param.name}/Adam_1"] = m.asnumpy().copy(), v.asnumpy().copy()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state in :meth:`state_dict`'s layout; only ``global_step`` may be missing."""
        targets = {"beta1_power": self.beta1_power, "beta2_power": self.beta2_power}
        for param, m, v in zip(self.parameters, self.m, self.v, strict=True):
            targets |= {f"{param.name}/Adam": m, f"{param.name}/Adam_1": v}
        if isinstance(state, dict) and "global_step" in state:
            targets["global_step"] = self.global_step
        write_all(targets, state)
