"""A plain step is launched before the finite flag of the last one is read, so that no device waits for the host.

The flag is read right after the launch, or earlier if somebody asks for counts or Parameters
(:meth:`thor.optimizer_state.StepCounts.settle`). Steps, skipped steps and errors are the same as with a flag that is
read at once: the graph itself leaves the weights alone and mends moving averages. Where the host decides by the count
of steps, it waits:

    before a step that gathers factors or adopts new bases
    after Parameters were loaded
    with a dynamic loss scale, and with a learning rate that the host computes from the step
    if one more bad step would end the training
    with accumulation and without jit; and on a CPU, where there is nothing to wait for
"""

from __future__ import annotations

from thor.optimizer import THOR
from thor.plain_optimizer import PlainOptimizer
from thor.runtime import device
from thor.runtime.parameters import read


class Ahead:
    """Tells whether the host may go ahead of the device.

    Args:
        control: the optimizer.
        single: whether each batch is a step.
        jit: whether steps are compiled.
    """

    def __init__(self, control: THOR | PlainOptimizer, *, single: bool, jit: bool):
        self.control = control
        self.possible = device.runs_ahead() and single and jit and control.host_rate is None

    @property
    def leaves_flag(self) -> bool:
        """True if the flag of the plain step that has just been launched need not be read yet."""
        return self.possible and self.control.scale_rule is None and self._may_be_bad

    @property
    def launches(self) -> bool:
        """True if the coming step may be launched although the last one is uncounted."""
        control = self.control
        state = control.own_state
        decides = isinstance(control, THOR) and (state.gathers_now or state.adopts_now)
        return not decides and self._may_be_bad

    @property
    def _may_be_bad(self) -> bool:
        """True if one more step that is not finite does not end the training."""
        control = self.control
        most = control.options.max_bad_steps if isinstance(control, THOR) else control.max_bad_steps
        return read(control.own_state.bad_steps) + 1 < most
