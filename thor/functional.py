"""A training loop of the user's own: gradients, what the user makes of them, and the optimizer's step.

grad_fn = thor.value_and_grad(forward, optimizer)
loss, gradients = grad_fn(x, y)
optimizer(gradients)  # here the user may clip, add or scale them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from thor.optimizer import THOR
from thor.step.forward import Forward, FunctionForward
from thor.train_step import TrainStep


class GradFunction:
    """``loss, gradients = grad_fn(*inputs)``; with ``has_aux``, ``(loss, aux), gradients``.

    Gradients are unscaled, averaged over the ranks of a job, and in the order of ``optimizer.parameters``. For a THOR,
    curvature is gathered when it is due, and waits with the optimizer until it is called with gradients.
    """

    def __init__(self, step: TrainStep, optimizer: nn.Optimizer):
        self._step, self._optimizer = step, optimizer

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        found = self._step.differentiate(args, kwargs)
        step = self._step

        def move(gradients: tuple[Tensor, ...]) -> Tensor:
            return step.move(found, gradients)

        if isinstance(self._optimizer, THOR):
            self._optimizer.await_gradients(move)
        value = (found.loss, *found.aux) if found.aux else found.loss
        return value, found.gradients

    @property
    def graphs(self) -> int:
        """Number of functions compiled so far."""
        return self._step.graphs


class _LoopStep(TrainStep):
    """A step whose forward pass is a function of the user's."""

    def make_forward(self, net: nn.Cell, loss_fn: Callable[..., Any] | None, has_aux: bool) -> Forward:
        assert loss_fn is not None
        return FunctionForward(loss_fn, net, has_aux)


def value_and_grad(
    forward: Callable[..., Any], optimizer: nn.Optimizer, *, has_aux: bool = False, jit: bool = True
) -> GradFunction:
    """The loss and its gradients as a function of a batch, compiled, for ``optimizer(gradients)``.

    Args:
        forward: ``forward(*inputs)``, the mean loss of a batch; it calls the network whose weights ``optimizer`` moves.
        optimizer: a :class:`thor.THOR`, which skips a step that is not finite; or any ``nn.Optimizer``, which moves the
            weights by its own call, whatever the gradients are.
        has_aux: whether ``forward`` returns (loss, ...).
        jit: compile; False runs operator by operator.
    """
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(f"optimizer must be a thor.THOR or an nn.Optimizer, but got {type(optimizer).__name__}")
    if not callable(forward):
        raise TypeError(f"forward must be a function of a batch, but got {forward!r}")
    # other optimizers know weights only: their networks are found as the Cells that `forward` reaches
    net = optimizer.network if isinstance(optimizer, THOR) else nn.Cell(auto_prefix=False)
    return GradFunction(_LoopStep(net, forward, optimizer, has_aux=has_aux, jit=jit), optimizer)
