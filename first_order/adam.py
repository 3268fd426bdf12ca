r"""Adam as DirectML's operator and TensorFlow's AdamOptimizer compute it: "epsilon hat", outside the root.

Reference: Kingma & Ba, Adam: a method for stochastic optimization, https://arxiv.org/abs/1412.6980 (2015), section 2.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order import checks, tensor_checks
from first_order.base import FirstOrder, write_all
from first_order.sparse_gradients import check_rows, dense_gradient, seen_rows
from first_order.tensors import on_host, scalar, working_type


def adam_update(
    param, m, v, grad, step, learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, use_nesterov=False, *,
    in_place=False,
):  # fmt: skip
    r"""One Adam step as a function, DirectML's ``DML_ADAM_OPTIMIZER_OPERATOR``.

    A running mean of the gradient gives the direction, one of its square the scale; both start at zero, and
    :math:`\alpha_t` takes that bias out.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        \alpha_t &= \eta \sqrt{1 - \beta_2^t} / (1 - \beta_1^t) \\
        x &\leftarrow x - \alpha_t\, m / (\sqrt{v} + \epsilon)

    Args:
        param: x; all four tensors are of one shape and one type, float16, float32 or float64 (the operator's: the first
            two). float16 is computed in float32 and rounded once.
        m: running mean of gradients.
        v: running mean of squares.
        grad: g.
        step: :math:`t`, counted from 1 by the caller; number or Tensor of one, integer or float. The operator's
            documentation starts at 0, where the formula is 0 / 0: on the host that is an error, and in a graph, which
            cannot raise, 0 counts as 1.
        learning_rate: :math:`\eta`, number or Tensor of one, as the next three.
        beta1: decay of m, in [0, 1].
        beta2: decay of v, in [0, 1].
        epsilon: bounds the step where gradients are tiny. It is added to the root of the uncorrected v, so that it
            acts like :math:`\epsilon / \sqrt{1 - \beta_2^t}` in the paper's first form.
        use_nesterov: looks one step ahead, :math:`\beta_1 m + (1 - \beta_1) g` in place of m, as TensorFlow's kernel;
            the operator has no such option.
        in_place: write into ``param``, ``m`` and ``v``, which must be Parameters, and return these.

    Returns:
        (param, m, v), new.

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
    r"""One Adam step for a gradient that is given by rows, TensorFlow's sparse apply.

    Row ``indices[i]`` of the gradient is ``values[i]``, repeated indices add up *before* squaring, and all other rows
    are zero. The moments decay on every row and every row moves, also those without a gradient; so this is
    :func:`adam_update` of the dense gradient, number for number.

    Args:
        param: x, [rows, ...].
        m: as param.
        v: as param.
        values: [n, ...], the gradient's rows.
        indices: [n], int32 or int64, each in [0, rows).
        step: as in :func:`adam_update`, like the arguments that follow.
        learning_rate: the same.
        beta1: the same.
        beta2: the same.
        epsilon: the same.
        use_nesterov: the same.
        lazy: only the rows named by ``indices`` decay and move. That is another optimizer, often called LazyAdam:
            rare rows keep their momentum until they are seen again.
        in_place: as in :func:`adam_update`.

    Returns:
        (param, m, v), new.

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
        new = _only(seen_rows(param, indices), new, param, m, v)
    return _written(param, m, v, new) if in_place else new


def _moved(param, m, v, grad, step, learning_rate, beta1, beta2, epsilon, use_nesterov):
    """(param, m, v) after a step, from hyper-parameters of any form."""
    dtype = working_type(param.dtype)
    beta1, beta2 = scalar(beta1, dtype), scalar(beta2, dtype)
    rate = scalar(learning_rate, dtype) * bias_correction(step, beta1, beta2, dtype)
    return adam_step(param, m, v, grad, rate, beta1, beta2, scalar(epsilon, dtype), use_nesterov)


def bias_correction(step, beta1, beta2, dtype):
    """sqrt(1 - beta2^t) / (1 - beta1^t); t = 0 counts as 1.

    1 - beta^t is -expm1(t log beta): with beta2 = 0.999 the plain difference has lost four of float32's seven digits.
    """
    t = ops.maximum(scalar(step, dtype), Tensor(1, dtype))
    return ops.sqrt(-ops.expm1(t * ops.log(beta2))) / -ops.expm1(t * ops.log(beta1))


def adam_step(param, m, v, grad, rate, beta1, beta2, epsilon, use_nesterov):
    """(param, m, v) after a step with the corrected learning rate; scalars are of the working type."""
    dtype = rate.dtype
    m32, v32, g = m.astype(dtype), v.astype(dtype), grad.astype(dtype)
    # not m + (g - m)(1 - beta1): where the old moment is far larger than the new one, that rounds to the old one's size
    m32 = beta1 * m32 + (1 - beta1) * g
    v32 = beta2 * v32 + (1 - beta2) * (g * g)
    direction = m32
    if use_nesterov:
        direction = beta1 * m32 + (1 - beta1) * g
    moved = param.astype(dtype) - rate * direction / (ops.sqrt(v32) + epsilon)
    return moved.astype(param.dtype), m32.astype(m.dtype), v32.astype(v.dtype)


def _dense(param, gradient):
    """A gradient as one tensor, whatever its form."""
    if isinstance(gradient, tuple):
        return dense_gradient(param, gradient[0], gradient[1])
    if hasattr(gradient, "indices"):  # a RowTensor, which only graphs have
        return dense_gradient(param, gradient.values, gradient.indices)
    return gradient


def _only(seen, new, param, m, v):
    """The new values where ``seen``, the old ones elsewhere."""
    return ops.where(seen, new[0], param), ops.where(seen, new[1], m), ops.where(seen, new[2], v)


def _written(param, m, v, new):
    return ops.assign(param, new[0]), ops.assign(m, new[1]), ops.assign(v, new[2])


def _tensors(**values: Any) -> list[Tensor]:
    """Tensors of one shape and one float type, in the order given."""
    tensors = {name: tensor_checks.as_tensor(name, value, tensor_checks.FLOATS) for name, value in values.items()}
    tensor_checks.same_kind(**tensors)
    return list(tensors.values())


def _check_hypers(step: Any, learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> None:
    tensor_checks.hyper("learning_rate", learning_rate, 0.0)
    tensor_checks.hyper("beta1", beta1, 0.0, 1.0)
    tensor_checks.hyper("beta2", beta2, 0.0, 1.0)
    tensor_checks.hyper("epsilon", epsilon, 0.0)
    count = tensor_checks.scalar_on_host("step", step)
    if not count >= 1:
        raise ValueError(
            f"step must be at least 1, but got {count:g}: the bias correction divides by 1 - beta1^step. Count the "
            f"first step as 1 (the operator's documentation says 0, where its formula is 0 / 0)"
        )


def _check_beta(name: str, value: Any) -> float:
    return checks.number(name, value, 0.0, 1.0, open_high=True)


class Adam(FirstOrder):
    r"""Adam, number for number TensorFlow's ``AdamOptimizer``.

    Each weight gets a step of about the learning rate, whatever its gradient's scale: a robust default that needs
    little tuning and twice the weights' memory.

    .. math::
        \eta_t = \eta \sqrt{1 - \beta_2^t} / (1 - \beta_1^t), \quad
        m \mathrel{+}= (g - m)(1 - \beta_1), \quad v \mathrel{+}= (g^2 - v)(1 - \beta_2), \quad
        x \mathrel{-}= \eta_t\, m / (\sqrt{v} + \epsilon)

    Args:
        params: Parameters, (name, Parameter) pairs, or groups as ``nn.Optimizer`` takes them, with ``lr``,
            ``weight_decay`` and ``grad_centralization`` of their own.
        learning_rate: number, list, Tensor, MindSpore schedule, or a function without arguments (:meth:`prepare`).
        beta1, beta2: decay of the mean of gradients and of squares, in [0, 1); number or function. Nearer to 1 the
            means are smoother and slower.
        epsilon: bounds the step where gradients are tiny, number or function. It stands outside the root and is not
            corrected for bias.
        use_nesterov: :math:`\beta_1 m + (1 - \beta_1) g` in place of :math:`m`.
        lazy: with sparse gradients only the rows that occur decay and move (LazyAdam).
        weight_decay: adds weight_decay * x to g (L2), by ``nn.Optimizer``'s rules; TensorFlow's has none.
        loss_scale: gradients are divided by it.

    Inputs:
        gradients: one for each parameter; a Tensor, a pair (values, indices) as in :func:`sparse_adam_update`, or, in
        a graph, the RowTensor of a sparse embedding.

    The powers of the betas are state and advance after all weights have moved, so the first step uses t = 1.

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
        float16 weights are computed in float32 and rounded once a step, where TensorFlow rounds after every operation
        and keeps the powers in float16. ``nn.Adam`` computes the same formula, whatever its documentation says; it has
        no float64, no functions as hyper-parameters, and goes on with old values when a checkpoint is loaded in
        PYNATIVE_MODE after a step.
    """

    def __init__(
        self, params: Any, learning_rate: Any = 1e-3, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8,
        use_nesterov: bool = False, weight_decay: Any = 0.0, loss_scale: float = 1.0, *, lazy: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, learning_rate, weight_decay, loss_scale)
        self.beta1 = self._hyper("beta1", beta1, _check_beta)
        self.beta2 = self._hyper("beta2", beta2, _check_beta)
        self.epsilon = self._hyper("epsilon", epsilon, checks.at_least_0)
        self.use_nesterov = checks.flag("use_nesterov", use_nesterov)
        self.lazy = checks.flag("lazy", lazy)
        self.m = self.state_like_parameters("adam_m")
        self.v = self.state_like_parameters("adam_v")
        self.beta1_power = self._power("beta1_power", self.beta1)
        self.beta2_power = self._power("beta2_power", self.beta2)
        self.fused = ops.Adam(use_nesterov=self.use_nesterov)

    def _power(self, name: str, beta: Tensor) -> Parameter:
        """beta^t of the coming step, from t = 1."""
        return Parameter(Tensor(beta.asnumpy().copy()), name=name, requires_grad=False)

    def construct(self, gradients):
        """Move every weight; answers with the steps done."""
        if len(gradients) != self.param_length:
            raise ValueError(f"gradients must be {self.param_length}, one for each parameter, but got {len(gradients)}")
        dense = self.map_(_dense, self.parameters, gradients)
        dense = self.unscaled(self.decayed(dense))
        correction = ops.sqrt(1 - self.beta2_power) / (1 - self.beta1_power)
        shared = (self.beta1_power, self.beta2_power, correction)
        self.map_with_rates(self._move, shared, self.parameters, self.m, self.v, gradients, dense)
        ops.assign(self.beta1_power, self.beta1_power * self.beta1)
        ops.assign(self.beta2_power, self.beta2_power * self.beta2)
        return self.assignadd(self.global_step, self.global_step_increase_tensor)

    def _move(self, shared, rate, param, m, v, given, gradient):
        beta1_power, beta2_power, correction = shared
        sparse = isinstance(given, tuple) or hasattr(given, "indices")
        if param.dtype == ms.float32 and not (self.lazy and sparse):
            # MindSpore's kernel has this formula, Nesterov included, in one pass
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
            new = _only(seen_rows(param, rows), new, param, m, v)
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
        """The state under TensorFlow's variable names: beta powers, and the slots of each weight.

        ``<weight>/Adam`` is m and ``<weight>/Adam_1`` is v, as ``tf.compat.v1.train.AdamOptimizer`` names them;
        ``global_step`` is what a learning-rate schedule counts.
        """
        state = {name: getattr(self, name).asnumpy().copy() for name in ("beta1_power", "beta2_power")}
        state["global_step"] = self.global_step.asnumpy().astype(np.int64).reshape(())
        for param, m, v in zip(self.parameters, self.m, self.v, strict=True):
            state[f"{param.name}/Adam"], state[f"{param.name}/Adam_1"] = m.asnumpy().copy(), v.asnumpy().copy()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state in :meth:`state_dict`'s layout; ``global_step`` may be missing, other entries not."""
        targets = {"beta1_power": self.beta1_power, "beta2_power": self.beta2_power}
        for param, m, v in zip(self.parameters, self.m, self.v, strict=True):
            targets |= {f"{param.name}/Adam": m, f"{param.name}/Adam_1": v}
        if isinstance(state, dict) and "global_step" in state:
            targets["global_step"] = self.global_step
        write_all(targets, state)
