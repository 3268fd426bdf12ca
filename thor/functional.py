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

    Gradients are unscaled, averaged over the ranks of a job, and in the order of ``optimizer.parameters``. Curvature is
    gathered when it is due, and waits with the optimizer until it is called with gradients.
    """

    def __init__(self, step: TrainStep, optimizer: THOR):
        self._step, self._optimizer = step, optimizer

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Tensor, ...]]:
        found = self._step.differentiate(args, kwargs)
        step = self._step

        def move(gradients: tuple[Tensor, ...]) -> Tensor:
            return step.move(found, gradients)

        self._optimizer.await_gradients(move)
        value = (found.loss, *found.aux) if found.aux else found.loss
        return value, found.gradients


class _LoopStep(TrainStep):
    """A step whose forward pass is a function of the user's."""

    def make_forward(self, net: nn.Cell, loss_fn: Callable[..., Any] | None, has_aux: bool) -> Forward:
        assert loss_fn is not None
        return FunctionForward(loss_fn, net, has_aux)


def value_and_grad(
    forward: Callable[..., Any], optimizer: THOR, *, has_aux: bool = False, jit: bool = True
) -> GradFunction:
    """The loss and its gradients as a function of a batch, compiled, for ``optimizer(gradients)``.

    Args:
        forward: ``forward(*inputs)``, the mean loss of a batch; it calls the network that ``optimizer`` was made for.
        optimizer: a :class:`thor.THOR`. (For any other optimizer take ``mindspore.value_and_grad``.)
        has_aux: whether ``forward`` returns (loss, ...).
        jit: compile; False runs operator by operator.
    """
    if not isinstance(optimizer, THOR):
        raise TypeError(
            f"optimizer must be a thor.THOR, but got {type(optimizer).__name__}: take mindspore.value_and_grad for it, "
            f"which needs no curvature"
        )
    if not callable(forward):
        raise TypeError(f"forward must be a function of a batch, but got {forward!r}")
    return GradFunction(_LoopStep(optimizer.network, forward, optimizer, has_aux=has_aux, jit=jit), optimizer)
