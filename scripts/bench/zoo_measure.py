"""What scripts/bench/zoo.py measures of one network: what THOR captures of it, how it trains, what its steps cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

import thor
from first_order.cells import own_parameters
from scripts.bench.step import NEVER, Forced, first_order_step, interleaved, summary
from scripts.bench.zoo_families import CLASSES, FAMILIES, make
from thor.capture.targets import LeftOut, Target, find_targets

#: The only setting, for all networks: the rate that Adam is used with most.
LEARNING_RATE = 1e-3


def structure(family: str) -> dict[str, Any]:
    """What THOR captures of a family's network, counted in entries of trainable Parameters.

    Returns:
        ``layers``, captured by default; ``parameters``, all entries; ``captured`` and ``captured_with_norms``, those
        that are preconditioned with ``norms=False`` and ``True``; ``left_out`` with ``norms=True``: a list of
        ``{"type", "reason", "layers", "parameters"}``, the most parameters first.
    """
    net = make(family)
    trainable = [parameter for parameter in net.get_parameters() if parameter.requires_grad]
    targets, _ = find_targets(net)
    with_norms, left_out = find_targets(net, norms=True)
    return {
        "layers": len(targets),
        "parameters": _entries(trainable),
        "captured": _entries(preconditioned(targets).values()),
        "captured_with_norms": _entries(preconditioned(with_norms).values()),
        "left_out": left_out_by_reason(net, with_norms, left_out),
    }


def preconditioned(targets: list[Target]) -> dict[int, Parameter]:
    """The Parameters that are preconditioned if these targets are captured, by id."""
    return {id(p): p for target in targets for p in (target.weight, target.bias) if p is not None}


def left_out_by_reason(net: nn.Cell, targets: list[Target], left_out: list[LeftOut]) -> list[dict[str, Any]]:
    """Layers that are left out, summed up by type and reason; a Parameter counts for the first layer that has it."""
    counted = set(preconditioned(targets))
    cells = {name or type(net).__name__: cell for name, cell in net.cells_and_names()}
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for each in left_out:
        cell = cells.get(each.name) or cells[each.name.removesuffix(".bias")]
        own = [p for p in own_parameters(cell) if p.requires_grad and id(p) not in counted]
        counted.update(id(p) for p in own)
        line = sums.setdefault(
            (each.type, each.reason), {"type": each.type, "reason": each.reason, "layers": 0, "parameters": 0}
        )
        line["layers"] += 1
        line["parameters"] += _entries(own)
    return sorted(sums.values(), key=lambda line: -line["parameters"])


def _entries(parameters: Any) -> int:
    return sum(int(parameter.size) for parameter in parameters)


def batch_of(image: int, examples: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Images of noise, each tinted by its class, and their labels."""
    labels = np.arange(examples) * (classes // examples)
    rng = np.random.default_rng(0)
    tint = rng.standard_normal((examples, 3, 1, 1))
    images = 0.5 * rng.standard_normal((examples, 3, image, image)) + tint
    return Tensor(images.astype(np.float32)), Tensor(labels.astype(np.int32))


def cross_entropy() -> Callable[..., Tensor]:
    """Cross entropy, with 0.4 times that of each further head of a network (Szegedy et al. 2015)."""
    from mindcv.loss import CrossEntropySmooth

    return CrossEntropySmooth(aux_factor=0.4)


def train(net: nn.Cell, batch: tuple[Tensor, Tensor], count: int) -> tuple[thor.THOR, list[float], list[float]]:
    """Train a network on one batch by THOR's defaults, operator by operator; the mode has to be PYNATIVE_MODE.

    ``count`` curvature steps, of which each gathers factors and renews all bases, are followed by a plain step. The
    rate of layers in eigenbases is the given one.

    Returns:
        The optimizer; the loss before each step, and after all of them; the seconds of each step.
    """
    optimizer = thor.THOR(net, lambda step: LEARNING_RATE if step <= count else 0.0, rate_factor=1.0)
    step = thor.TrainStep(net, cross_entropy(), optimizer, jit=False)
    curvature, plain = Forced(step, 0, 0), Forced(step, NEVER, NEVER)
    losses, seconds = [], []
    for each in (*[curvature] * count, plain, plain):  # the last step moves nothing
        begin = time.perf_counter()
        losses.append(float(each(*batch).asnumpy()))
        seconds.append(time.perf_counter() - begin)
    return optimizer, losses, seconds[:-1]


def trained(family: str, count: int) -> dict[str, Any]:
    """Train a family's network by ``count`` curvature steps and a plain one, see :func:`train`.

    Returns:
        ``loss``, the first and the last; ``seconds``, of a curvature step and of the plain one; ``image`` and
        ``batch``; ``not_called``, the number of captured layers that a forward pass does not call; ``not_renewed``,
        that of others which did not get new bases at each curvature step; ``state_bytes``.
    """
    chosen = FAMILIES[family]
    optimizer, losses, seconds = train(make(family), batch_of(chosen.image, chosen.batch), count)
    *curvature, plain = seconds
    called = [layer.used for layer in optimizer.captured]
    renewed = [layer.refreshes == count for layer in optimizer.layers]
    return {
        "loss": [losses[0], losses[-1]],
        "seconds": {"curvature": float(np.median(curvature[1:] or curvature)), "plain": plain},
        "image": chosen.image,
        "batch": chosen.batch,
        "not_called": called.count(False),
        "not_renewed": sum(used and not new for used, new in zip(called, renewed, strict=True)),
        "state_bytes": optimizer.memory()["total"],
    }


def step_times(family: str, rounds: int) -> dict[str, Any]:
    """Time compiled steps of a family's network, which move nothing, beside Momentum's.

    Returns:
        ``ms``, ``quartiles`` and ``ratio`` as scripts/bench/step.py; ``seconds`` of everything.
    """
    begin = time.perf_counter()
    chosen = FAMILIES[family]
    net, other = make(family), make(family)
    step = thor.TrainStep(net, cross_entropy(), thor.THOR(net, 0.0))
    thor.device.fast_convolutions(other)
    phases: dict[str, Callable[..., Tensor]] = {
        "refresh": Forced(step, 0, 0),
        "curvature": Forced(step, 0, NEVER),
        "plain": Forced(step, NEVER, NEVER),
        "Momentum": first_order_step(other, cross_entropy()),
    }
    found = summary(interleaved(phases, batch_of(chosen.image, chosen.batch), rounds))
    return found | {"seconds": time.perf_counter() - begin}
