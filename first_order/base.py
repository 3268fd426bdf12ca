"""The base class of the optimizers on top of nn.Optimizer, and helpers for groups and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import functional as F

from first_order import checks, tensor_checks
from first_order.cells import set_unregistered
from first_order.compiled import CompiledFunction
from first_order.storage_watch import StorageWatch
from first_order.tensors import working_type


class ConstantRate(nn.learning_rate_schedule.LearningRateSchedule):
    """A constant learning rate among schedules; :attr:`learning_rate` is its Parameter."""

    def __init__(self, learning_rate: Parameter) -> None:
        super().__init__()
        self.learning_rate = learning_rate

    def construct(self, global_step):
        """The rate, whatever the step."""
        return self.learning_rate * 1


class FirstOrder(nn.Optimizer):
    """Base class of the package's optimizers: an ``nn.Optimizer`` that compiles its own step.

    A call on the host runs one compiled function, in GRAPH_MODE and in PYNATIVE_MODE. Inside a graph (``ms.jit``,
    ``ms.Model``, ``thor.THOR``) the step becomes part of that graph. float64 parameters are computed in float64. What
    ``nn.Optimizer`` itself stores is float32: a loss scale, a weight decay, and rates in lists.

    Hyper-parameters given as Python functions are read by :meth:`prepare`. A call on the host starts with it. A graph
    around the optimizer is compiled once and cannot call Python functions: call ``prepare()`` before each step of it.
    """

    def __init__(self, params: Any, learning_rate: Any, weight_decay: Any, loss_scale: float) -> None:
        check_rate("the learning rate", learning_rate)
        check_decay("weight_decay", weight_decay)
        groups = parameter_groups(params)
        # set first: super().__init__() calls _build_single_lr(), which reads it
        set_unregistered(self, _has_float64=any(p.dtype == ms.float64 for p in _parameters(groups)))
        supplier = tensor_checks.supplier_of("learning_rate", learning_rate, checks.at_least_0)
        super().__init__(supplier() if supplier else learning_rate, groups, weight_decay, loss_scale)
        set_unregistered(self, _suppliers=[])
        if supplier:
            if self.is_group_lr:
                raise ValueError("learning_rate must be a number or a schedule where a group has an lr of its own")
            self._suppliers.append((self.learning_rate, supplier))
        set_unregistered(self, _compiled=None, _compiled_for=None, _watch=None)

    def _build_single_lr(self, learning_rate: Any, name: str) -> Any:
        """A number as a Parameter, in float64 if there are float64 parameters; beside schedules a schedule of it.

        nn.Optimizer would round a float64 number, and one beside a schedule to a multiple of float32's step at 1.
        """
        if isinstance(learning_rate, float):
            learning_rate = Tensor(learning_rate, ms.float64 if self._has_float64 else ms.float32)
        if isinstance(learning_rate, Tensor) and learning_rate.ndim == 0:
            rate = Parameter(learning_rate, name)
            return ConstantRate(rate) if self.is_group_lr and self.dynamic_lr else rate
        return super()._build_single_lr(learning_rate, name)

    def regroup(self, groups: list[dict[str, Any]], learning_rate: Any) -> None:
        """Replace the optimized groups by ``groups`` and create the learning rates anew."""
        supplier = next((read for rate, read in self._suppliers if rate is self.learning_rate), None)
        set_unregistered(self, _has_float64=any(p.dtype == ms.float64 for p in _parameters(groups)))
        for name in [name for name in self._params if name.startswith("learning_rate")]:
            self._params.pop(name)
        if hasattr(self, "learning_rate"):  # a tuple, which is not in _params
            del self.learning_rate
        self.dynamic_lr = self.is_group_lr = False
        for name in ("group_params", "group_lr", "group_weight_decay", "group_grad_centralization"):
            setattr(self, name, [])
        rate = self._preprocess_single_lr(supplier() if supplier else learning_rate)
        self._init_group_params(groups, rate, 0.0, False)
        self._init_opt_attrs(rate, groups, 0.0)
        if supplier:
            set_unregistered(self, _suppliers=[(self.learning_rate, supplier)])

    # -- hyper-parameters and state ------------------------------------------------------------------------------

    @property
    def precision(self) -> Any:
        """Type of the scalar hyper-parameters: float64 if any parameter is float64, else float32."""
        return ms.float64 if self._has_float64 else ms.float32

    def _hyper(self, name: str, value: Any, check: Callable[[str, Any], float]) -> Tensor:
        """A checked constant; if ``value`` is a function, a Parameter that :meth:`prepare` writes."""
        supplier = tensor_checks.supplier_of(name, value, check)
        if supplier is None:
            return Tensor(check(name, value), self.precision)
        parameter = Parameter(Tensor(supplier(), self.precision), name=name, requires_grad=False)
        self._suppliers.append((parameter, supplier))
        return parameter

    def prepare(self) -> None:
        """Call the hyper-parameters that are Python functions and store their values."""
        for parameter, supplier in self._suppliers:
            ops.assign(parameter, Tensor(supplier(), parameter.dtype))

    def decayed(self, gradients):
        """The gradients plus weight decay, in a graph; unlike nn.Optimizer, in the working type of the weight."""
        if not self.exec_weight_decay:
            return gradients
        decay = self.get_weight_decay()
        if self.is_group:
            return self.map_(_decayed, decay, self.decay_flags, self._parameters, gradients)
        return self.map_(F.partial(_decayed, decay), self.decay_flags, self._parameters, gradients)

    def gradients_centralization(self, gradients):
        """Gradients less their means over all axes but the first, in groups with ``grad_centralization``, in a graph.

        nn.Optimizer's operator is there on Ascend alone.
        """
        if self.is_group:
            return self.map_(_centralized, self.grad_centralization_flags, gradients)
        return gradients

    def unscaled(self, gradients):
        """The gradients, centralized and divided by the loss scale; float16 becomes float32, to avoid underflow."""
        return self.scale_grad(self.gradients_centralization(self.map_(_widened, gradients)))

    def unscaled_dense(self, gradients):
        """As :meth:`unscaled`; raise, while a graph is compiled, if a gradient is sparse."""
        # asked before all arithmetic, which would fail with an obscure message
        if _all_dense(self.map_(_has_rows, gradients)):
            return self.unscaled(gradients)
        return gradients

    def state_like_parameters(self, prefix: str) -> ms.ParameterTuple:
        """For each parameter, a zero Parameter of its shape and type, named ``prefix``.name."""
        return self.parameters.clone(prefix=prefix, init="zeros")

    # -- calls on the host ---------------------------------------------------------------------------------------

    def __call__(self, gradients: Sequence[Any]) -> Tensor:
        """Check the gradients, read the hyper-parameters and run the compiled step; return the number of steps done."""
        layout = self._check(gradients)
        self.prepare()
        if self._compiled_for != layout:
            self._compile(layout)
        if self._watch.moved:
            self._watch.restore()
        done = self._compiled(*(part for g in gradients for part in (g if isinstance(g, tuple) else (g,))))
        if not self._watch.noted:
            self._watch.note()
        return done

    def _compile(self, layout: tuple[bool, ...]) -> None:
        """Make the compiled step for these gradients; ``layout`` tells which are sparse.

        It takes each tensor as an argument of its own: a tuple as an argument would be compiled at every call.
        """
        cell, pairs = self, tuple(index for index, sparse in enumerate(layout) if sparse)

        def step(*tensors):
            gradients, at, taken = (), 0, 0
            for pair in pairs:  # a sparse gradient is passed as two tensors
                first = at + pair - taken
                gradients += tensors[at:first] + ((tensors[first], tensors[first + 1]),)
                at, taken = first + 2, pair + 1
            return cell(gradients + tensors[at:])

        if self._compiled is not None:
            self._compiled.release()
        watch = StorageWatch((*self.parameters, *self.get_parameters()))
        set_unregistered(self, _compiled=CompiledFunction(step), _compiled_for=layout, _watch=watch)

    def _check(self, gradients: Any) -> tuple[bool, ...]:
        """Raise unless there is one gradient for each parameter; return which gradients are sparse pairs."""
        if not isinstance(gradients, tuple | list):
            raise TypeError(
                f"gradients must be a tuple or list with one Tensor for each of the {self.param_length} parameters, "
                f"but got {type(gradients).__name__}"
            )
        if len(gradients) != self.param_length:
            raise ValueError(
                f"gradients must be {self.param_length}, one for each parameter in the order of "
                f"optimizer.parameters, but got {len(gradients)}"
            )
        return tuple(self._check_one(p, g) for p, g in zip(self.parameters, gradients, strict=True))

    def _check_one(self, parameter: Parameter, gradient: Any) -> bool:
        """Raise unless ``gradient`` fits ``parameter``; return whether it is a sparse pair."""
        name = f"gradient of {parameter.name}"
        if isinstance(gradient, tuple):
            raise TypeError(f"{name} must be a Tensor: {type(self).__name__} takes no sparse gradients")
        if not isinstance(gradient, Tensor):
            raise TypeError(f"{name} must be a Tensor, but got {type(gradient).__name__}")
        if gradient.shape != parameter.shape:
            raise ValueError(f"{name} must have shape {tuple(parameter.shape)}, but got {tuple(gradient.shape)}")
        return False


def map_with_rates(over, rate, by_group, function, shared, *lists):
    """Call function(shared, rate, element of each list) for every parameter, in a graph.

    This is a map because the compiler nests the rounds of a loop in each other, and fails if they are too many. It is
    no method, because MindSpore keeps the owner of a method that is given a function.

    Args:
        over: ``ops.Map()``.
        rate: the learning rate, or a tuple of one for each parameter.
        by_group: whether it is a tuple.
        function: the function.
        shared: its first argument.
        lists: tuples of one value for each parameter.
    """
    if by_group:
        return over(F.partial(function, shared), rate, *lists)
    return over(F.partial(function, shared, rate), *lists)


def _widened(gradient):
    """The gradient in the working type: float16 becomes float32."""
    if gradient.dtype == ms.float16:
        return gradient.astype(ms.float32)
    return gradient


def _centralized(applies, gradient):
    """The gradient less its mean over all axes but the first, if it has such axes."""
    if applies and gradient.ndim > 1:
        return gradient - gradient.mean(tuple(range(1, gradient.ndim)), True)
    return gradient


def _has_rows(gradient):
    return hasattr(gradient, "indices")


@ops.constexpr
def _all_dense(have_rows: tuple[bool | None, ...]) -> bool:
    """True; raise, while a graph is compiled, if a gradient is a RowTensor. A ``raise`` in the graph comes too late.

    None is the answer about a RowTensor whose type is not known yet.
    """
    if any(has_rows is not False for has_rows in have_rows):
        raise TypeError(
            "a gradient must be a Tensor, but got sparse rows: use nn.Embedding in place of nn.EmbeddingLookup, or Adam"
        )
    return True


def _decayed(decay, applies, weight, gradient):
    """Gradient + decay * weight where decay applies, in the working type of the weight."""
    if applies:
        dtype = working_type(weight.dtype)
        return gradient.astype(dtype) + weight.astype(dtype) * decay.astype(dtype)
    return gradient


def parameter_groups(params: Any) -> list[Any]:
    """Check ``params`` and return a list of Parameters or of group dictionaries, as ``nn.Optimizer`` takes them.

    Parameters may also come as (name, Parameter) pairs; the names are dropped.
    """
    if isinstance(params, Tensor | dict | str) or not isinstance(params, Iterable):
        raise TypeError(
            f"params must be a list of Parameters, of (name, Parameter) pairs or of dictionaries with such lists under "
            f"'params', but got {type(params).__name__}"
        )
    items = list(params)
    if not items:
        raise ValueError("params must not be empty: the network has no trainable parameters, or a generator is used up")
    if isinstance(items[0], dict):
        groups = [dict(item) if isinstance(item, dict) else item for item in items]
        for index, group in enumerate(groups):
            if not isinstance(group, dict):
                raise TypeError(f"params must be all dictionaries or none, but item {index} is {type(group).__name__}")
            if "params" in group:
                group["params"] = parameter_groups(group["params"])
                check_rate(f"lr of group {index}", group.get("lr", 0.0))
                check_decay(f"weight_decay of group {index}", group.get("weight_decay", 0.0))
            elif "order_params" not in group:
                raise ValueError(f"params: group {index} must have a list under 'params', but has {sorted(group)}")
        return groups
    plain = [item[1] if isinstance(item, tuple) and len(item) == 2 else item for item in items]
    for index, parameter in enumerate(plain):
        if not isinstance(parameter, Parameter):
            raise TypeError(f"params must hold Parameters, but item {index} is {type(parameter).__name__}")
        if parameter.dtype not in tensor_checks.FLOATS:
            raise TypeError(f"parameter {parameter.name} must be float16, float32 or float64, but is {parameter.dtype}")
    return plain


def decays_by_rule(parameter: Parameter) -> bool:
    """Whether a weight decay applies to a parameter outside groups, by ``nn.Optimizer``'s rule for names."""
    return "beta" not in parameter.name and "gamma" not in parameter.name


def check_rate(name: str, value: Any) -> None:
    """Raise for the wrong types and for the values in a list or Tensor that nn.Optimizer would accept as a rate.

    It checks all others itself.
    """
    if isinstance(value, str | bool | dict) or value is None:
        raise TypeError(f"{name} must be a number, list, Tensor, schedule or function, but got {value!r}")
    if isinstance(value, list | tuple | np.ndarray | Tensor):
        rates = np.asarray(value.asnumpy() if isinstance(value, Tensor) else value)
        if rates.ndim > 1:
            raise ValueError(f"{name} must be one number, or one for each step, but has the shape {rates.shape}")
        for step, rate in enumerate(rates.reshape(-1).tolist()):
            checks.number(f"{name} of step {step}" if rates.ndim else name, rate, 0.0)


def check_decay(name: str, value: Any) -> None:
    """Raise for a bool, which nn.Optimizer would take for 0 or 1; it checks all others itself."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a number or a schedule, but got {value!r}")


def _parameters(groups: list[Any]) -> list[Parameter]:
    """All Parameters of :func:`parameter_groups`' result."""
    return [p for item in groups for p in (item.get("params", ()) if isinstance(item, dict) else (item,))]


def write_all(targets: dict[str, Parameter], state: Any) -> None:
    """Load ``state`` into the Parameters in place, so that compiled functions read the new values.

    Everything is checked before the first Parameter is written.
    """
    if not isinstance(state, dict):
        raise TypeError(f"state must be a dictionary in state_dict()'s layout, but got {type(state).__name__}")
    missing, unknown = [n for n in targets if n not in state], [n for n in state if n not in targets]
    if missing or unknown:
        raise KeyError(
            f"state does not belong to these parameters: missing {missing[:5] or 'nothing'}, "
            f"unknown {unknown[:5] or 'nothing'}"
        )
    values = {}
    for name, parameter in targets.items():
        array = np.asarray(state[name].asnumpy() if isinstance(state[name], Tensor) else state[name])
        # one number may have shape () or (1,); otherwise a different shape of the same size may mean another order
        if array.shape != tuple(parameter.shape) and not array.size == parameter.size == 1:
            raise ValueError(f"{name} must have shape {tuple(parameter.shape)}, but got {array.shape}")
        values[name] = Tensor(array.reshape(parameter.shape)).astype(parameter.dtype)
    for name, parameter in targets.items():
        ops.assign(parameter, values[name])
