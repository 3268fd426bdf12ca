"""The choice of a network's layers to capture.

Layers are identified by object, never by the order of names. A captured layer stays the user's object and gets a
subclass of its own class (taps.py and pair_taps.py). The factors of each kind are defined in thor/factors/formulas.py.

    kind            layer                                weight              bias
    dense           a dense layer                        [O, I]              in A's last coordinate
    conv            a convolution                        [O, I / g, k, k]    in A's last coordinate, or plain gradient
    conv_transpose  a transposed convolution             [I, O / g, k, k]    plain gradient
    embedding       an embedding                         [V, D]
    tied            an embedding, decoders of its table  [V, D]              plain gradient
    norm_scale      a normalisation: its scale           [C]
    norm_shift      the same: its shift                  [C]

An attention's projections are dense layers too (projections.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from mindspore import Parameter, nn

from first_order.cells import own_parameters
from thor.capture.layer_classes import (
    DECLARED,
    LayerClass,
    class_of,
    is_embedding,
    overridden_class,
    parameter_of,
    rewritten_from,
)
from thor.capture.projections import Projection, find_projections, users_of
from thor.runtime.geometry import groups_of

#: A Cell of another class that computes x W^T (+ bias) declares it by this class attribute: ``thor_kind = "dense"``.
#: It matters only for a decoder that shares an embedding's table.
KIND_ATTRIBUTE = "thor_kind"
#: Whether a weight is one that trains.
Trains = Callable[[Parameter], bool]


@dataclass(frozen=True)
class Target:
    """A weight that can be captured, every Cell that uses it, and the dimensions of its factors."""

    name: str
    cells: tuple[nn.Cell, ...]
    kind: str
    weight: Parameter
    bias: Parameter | None
    copies: int
    a_dim: int
    g_dim: int
    transposed: bool = False  # whether a dense layer's weight is [I, O]
    channel_last: bool = False  # whether a convolution's weight is [O, k, k, I / g]


@dataclass(frozen=True)
class LeftOut:
    """A layer with weights of its own, or a bias, that is not captured, and the reason."""

    name: str
    type: str
    reason: str


#: A decoder that declares itself dense by ``KIND_ATTRIBUTE``.
_DECODER = LayerClass(nn.Cell, "dense", "weight", None)


def _weights_of(cell: nn.Cell, found: LayerClass) -> list[Parameter]:
    """The weights that are preconditioned if a layer of this class is captured."""
    names = (found.weight, found.bias) if found.kind == "norm" else (found.weight,)
    return [weight for weight in (parameter_of(cell, name) for name in names) if weight is not None]


def _reason_against(
    cell: nn.Cell, found: LayerClass | None, name: str, skips: Callable[[str], bool], norms: bool, trains: Trains
) -> str | None:
    if skips(name):
        return "matches skip"
    if found is None:
        overridden = overridden_class(cell)
        return f"overrides {overridden}.construct" if overridden else "this type has no factors here"
    if found.kind == "norm" and not norms:
        return "normalisation is not captured (norms=False)"
    weights = _weights_of(cell, found)
    if not weights and found.kind in DECLARED:
        return f"has no Parameter {found.weight!r}, which its class is declared to have"
    if not any(trains(weight) for weight in weights):
        return "frozen"
    if getattr(cell, "activation_flag", False) and rewritten_from(type(cell)) is not None:
        return "rewritten by MindSpore, with an activation inside: make that a layer of its own"
    if found.kind.startswith("conv"):
        return _reason_against_convolution(cell)
    if found.kind == "embedding" and (getattr(cell, "max_norm", None) or getattr(cell, "scale_grad_by_freq", False)):
        return "max_norm or scale_grad_by_freq change its rows or their gradients"
    return _reason_against_norm(cell, found) if found.kind == "norm" else None


def _reason_against_convolution(cell: nn.Cell) -> str | None:
    if getattr(cell, "padding_mode", "zeros") != "zeros":
        return f"padding_mode {cell.padding_mode}"
    return None


def channel_last(cell: nn.Cell) -> bool:
    """Whether a layer's channels are the last axis of its input."""
    return "NHWC" in (getattr(cell, "data_format", None), getattr(cell, "format", None))  # the latter a BatchNorm's


def has_moving_statistics(cell: nn.Cell) -> bool:
    """Whether a normalisation is a BatchNorm that normalises with its moving statistics now."""
    if cell.training:
        return False
    return getattr(cell, "use_batch_statistics", True) is None or getattr(cell, "running_mean", None) is not None


def _reason_against_norm(cell: nn.Cell, found: LayerClass) -> str | None:
    if found.norm == "layer":
        if getattr(cell, "begin_norm_axis", -1) != -1:  # it is the last axis of some inputs only
            return f"begin_norm_axis is {cell.begin_norm_axis}, and -1 alone is the last axis of any input"
        return None if len(cell.normalized_shape) == 1 else f"normalises over {len(cell.normalized_shape)} axes"
    if getattr(cell, "use_batch_statistics", None) is False:
        return "normalises with moving statistics"
    return "data_format NHWC" if channel_last(cell) else None


def find_targets(
    net: nn.Cell, skip: Iterable[str] = (), norms: bool = False, optimized: Collection[int] = ()
) -> tuple[list[Target], list[LeftOut]]:
    """The targets of a network, and its layers with weights and biases that are left out.

    A weight counts as one that trains if it has ``requires_grad``, or if its id is in ``optimized``: an optimizer that
    was given a frozen weight trains it as soon as it is unfrozen.

    ``skip`` holds regular expressions; a layer whose name matches one is left out. ``norms`` says whether normalisation
    layers are captured. Cells that share one weight are one target, named after the first. If one of them is left out,
    all are: the factors would miss its contribution to the weight's gradient. A bias that other Cells use too is left
    out, and its weight is captured without it.
    """

    def trains(weight: Parameter) -> bool:
        return weight.requires_grad or id(weight) in optimized

    patterns = [re.compile(pattern) for pattern in skip]

    def skips(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    groups: dict[int, list[tuple[str, nn.Cell]]] = {}
    users = users_of(net)
    attention = find_projections(net, skips, trains, users)
    left_out = [LeftOut(*each) for each in attention.left_out]
    elsewhere = dict(attention.elsewhere)  # id of a Parameter -> name of a Cell that has it and is left out
    embeddings = [cell for _, cell in net.cells_and_names() if is_embedding(cell)]
    tables = {id(weight) for cell in embeddings for weight in _weights_of(cell, _class(cell))}
    for name, cell in net.cells_and_names():
        own = own_parameters(cell)
        if not own or id(cell) in attention.cells:
            continue
        kind = _DECODER if _is_tied_decoder(cell, tables) else class_of(cell)
        reason = _reason_against(cell, kind, name, skips, norms, trains)
        if reason is None and kind is not None:
            groups.setdefault(id(_weights_of(cell, kind)[0]), []).append((name, cell))
        else:
            left_out.append(LeftOut(name or type(net).__name__, type(cell).__name__, reason or ""))
            elsewhere |= {id(p): left_out[-1].name for p in own}
    targets: list[Target] = []
    for weight, members in groups.items():
        if weight in elsewhere:
            why = f"{elsewhere[weight]}, which is left out, has its weight too"
            left_out += [LeftOut(name, type(cell).__name__, why) for name, cell in members]
            continue
        found, others = _targets_of(members, trains)
        targets += found
        left_out += others
    for index, target in enumerate(targets):
        if target.bias is not None and users[id(target.bias)] != {id(cell) for cell in target.cells}:
            targets[index] = replace(target, bias=None, a_dim=target.a_dim - 1)
            left_out.append(LeftOut(f"{target.name}.bias", type(target.cells[0]).__name__, "bias of other layers too"))
    targets += [_projection_target(each) for each in attention.projections]
    order = {id(cell): at for at, (_, cell) in enumerate(net.cells_and_names())}
    return sorted(targets, key=lambda target: order[id(target.cells[0])]), left_out


def keep_optimized(targets: Iterable[Target], optimized: set[int]) -> tuple[list[Target], list[LeftOut]]:
    """Keep the targets whose weights are optimized, without biases that are not; also return all that is left out.

    ``optimized`` holds the ids of the optimized Parameters.
    """
    chosen: list[Target] = []
    left_out: list[LeftOut] = []
    for target in targets:
        kind = type(target.cells[0]).__name__
        if id(target.weight) not in optimized:
            left_out.append(LeftOut(target.name, kind, "not among the optimizer's parameters"))
            continue
        if target.bias is not None and id(target.bias) not in optimized:
            left_out.append(LeftOut(f"{target.name}.bias", kind, "not among the optimizer's parameters"))
            target = replace(target, bias=None, a_dim=target.a_dim - 1)
        chosen.append(target)
    return chosen, left_out


def optimized_targets(
    net: nn.Cell, weights: Iterable[Parameter], skip: Iterable[str], norms: bool
) -> tuple[list[Target], list[LeftOut]]:
    """The targets whose weights are optimized, and all layers that are left out.

    Raises:
        ValueError: if there is no target.
    """
    optimized = {id(weight) for weight in weights}
    targets, left_out = find_targets(net, skip, norms, optimized)
    chosen, others = keep_optimized(targets, optimized)
    left_out += others
    if not chosen:
        why = "; ".join(f"{x.name} ({x.type}): {x.reason}" for x in left_out[:5]) or "it has no weights"
        raise ValueError(
            f"no layer to capture in {type(net).__name__}: THOR preconditions dense, convolution, "
            f"embedding and normalisation layers with trainable weights, and found none ({why})"
        )
    return chosen, left_out


def _is_tied_decoder(cell: nn.Cell, tables: set[int]) -> bool:
    """Whether a Cell declares itself dense and its weight is an embedding's table."""
    return getattr(type(cell), KIND_ATTRIBUTE, None) == "dense" and id(getattr(cell, "weight", None)) in tables


def _targets_of(members: list[tuple[str, nn.Cell]], trains: Trains) -> tuple[list[Target], list[LeftOut]]:
    """The targets of the Cells that share one weight, and the Cells and biases that are left out."""
    name, first = members[0]
    kind = class_of(first)
    if kind is not None and kind.kind == "norm":
        return _norm_targets(name, [cell for _, cell in members], kind, trains), []
    if any(is_embedding(cell) for _, cell in members):
        acting = [n for n, c in members if isinstance(c, nn.Dense) and c.activation_flag]
        if acting:
            why = f"{acting[0]}, which has its weight too, has an activation: make that a layer of its own"
            return [], [LeftOut(n, type(c).__name__, why) for n, c in members]
    tied = _tied_target(members)
    if tied is not None:
        biases = [LeftOut(f"{n}.bias", type(c).__name__, "bias of a tied decoder") for n, c in members
                  if getattr(c, "bias", None) is not None]  # fmt: skip
        return [tied], biases
    form = _target(name, trains, first)
    reasons = [(n, c, _reason_against_bias(c)) for n, c in members]
    biases = [LeftOut(f"{n}.bias", type(c).__name__, reason) for n, c, reason in reasons if reason is not None]
    if all(_same_form(_target(member, trains, cell), form) for member, cell in members[1:]):
        return [_target(name, trains, *(cell for _, cell in members))], biases
    return [], [LeftOut(n, type(c).__name__, f"{form.name}'s weight is used in several forms") for n, c in members]


def _target(name: str, trains: Trains, *cells: nn.Cell) -> Target:
    cell, label, found = cells[0], name or type(cells[0]).__name__, _class(cells[0])
    weight, bias = _weights_of(cell, found)[0], parameter_of(cell, found.bias)
    if found.kind == "embedding":
        return Target(label, cells, "embedding", weight, None, 1, *weight.shape)
    bias = bias if bias is not None and trains(bias) else None
    homogeneous = int(bias is not None)
    if found.kind == "dense":
        outputs, inputs = reversed(weight.shape) if found.transposed else weight.shape
        return Target(label, cells, "dense", weight, bias, 1, inputs + homogeneous, outputs, found.transposed)
    rows, columns, groups = weight.shape[0], math.prod(weight.shape[1:]), groups_of(cell)
    if found.kind == "conv_transpose":
        return Target(label, cells, "conv_transpose", weight, None, groups, rows // groups, columns)
    return Target(
        label, cells, "conv", weight, bias, groups, columns + homogeneous, rows // groups,
        channel_last=channel_last(cell),
    )  # fmt: skip


def _reason_against_bias(cell: nn.Cell) -> str | None:
    """Why a convolution's bias is not captured though its weight is."""
    found = _class(cell)
    if parameter_of(cell, "bias") is None or not found.kind.startswith("conv"):
        return None
    if found.kind == "conv_transpose":
        return "bias of a transposed convolution, which no input of its weight multiplies"
    return "bias of a convolution that standardises its weights" if found.standardized else None


def _projection_target(each: Projection) -> Target:
    outputs, inputs = each.weight.shape
    a_dim = inputs + int(each.bias is not None)
    return Target(each.name, each.cells, "dense", each.weight, each.bias, each.copies, a_dim, outputs // each.copies)


def _class(cell: nn.Cell) -> LayerClass:
    found = class_of(cell)
    assert found is not None, "the layer's class was looked up before"
    return found


def _tied_target(members: list[tuple[str, nn.Cell]]) -> Target | None:
    """The one target of an embedding and the decoders that share its table; None if the Cells are not such a group."""
    embeddings = [(name, cell) for name, cell in members if is_embedding(cell)]
    if not embeddings or len(embeddings) == len(members):
        return None
    table = _weights_of(embeddings[0][1], _class(embeddings[0][1]))[0]
    return Target(embeddings[0][0], tuple(cell for _, cell in members), "tied", table, None, 1, *table.shape)


def _norm_targets(name: str, cells: list[nn.Cell], found: LayerClass, trains: Trains) -> list[Target]:
    """One target for the scale and one for the shift."""
    label = name or type(cells[0]).__name__
    pairs = ((part, kind, parameter_of(cells[0], part)) for part, kind in
             ((found.weight, "norm_scale"), (found.bias, "norm_shift")))  # fmt: skip
    return [Target(f"{label}.{part}", tuple(cells), kind, weight, None, 1, 1, weight.shape[0])
            for part, kind, weight in pairs if weight is not None and trains(weight)]  # fmt: skip


def _same_form(one: Target, other: Target) -> bool:
    return (one.kind, one.copies, one.a_dim, one.g_dim, one.transposed, id(one.bias)) == (
        other.kind, other.copies, other.a_dim, other.g_dim, other.transposed, id(other.bias))  # fmt: skip


def skip_patterns(skip: Any) -> tuple[str, ...]:
    """The setting ``skip`` as a tuple of valid regular expressions on layer names."""
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise TypeError(f"skip must be a sequence of regular expressions on layer names, but got {skip!r}")
    patterns = tuple(skip)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"skip: {pattern!r} is not a regular expression: {error}") from error
    return patterns
