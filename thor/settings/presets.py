"""Published settings, as arguments of ``thor.THOR``: ``thor.THOR(net, **thor.presets.paper(steps_per_epoch))``."""

from __future__ import annotations

from typing import Any

from first_order.checks import check_int
from thor.curvature.trace_rule import TraceRule
from thor.settings.schedules import ExponentialDamping, PolynomialRate

#: Refreshes in an epoch of the published run: 834 of 5004 steps from one to the next.
REFRESHES_PER_EPOCH = 6


def paper(steps_per_epoch: int) -> dict[str, Any]:
    """The settings with which THOR's authors train ResNet-50 on ImageNet on Ascend, with the paper's trace rule.

    The batch is of 256 examples, and the run of 45 epochs. Rate and damping are schedules of the epoch; six refreshes
    belong to an epoch. Other tasks need other numbers in the place of both schedules' ``initial``.

    Reference: Chen et al., THOR, Trace-based Hardware-driven layer-ORiented natural gradient descent computation, AAAI
    2021, and the configuration released with it. The released code has no trace rule: ``refresh`` is the paper's.
    """
    check_int("steps_per_epoch", steps_per_epoch, 1)
    interval = max(1, steps_per_epoch // REFRESHES_PER_EPOCH)
    return {
        "learning_rate": PolynomialRate(0.05803, 4.0839, 53, steps_per_epoch),
        "damping": ExponentialDamping(0.03, 0.50036, steps_per_epoch),
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "precondition": "inverse",
        "split": "block",
        "block_size": 128,
        "interval": interval,
        "factor_interval": interval,
        "factor_decay": 0.0,
        "refresh": TraceRule.thor(),
    }
