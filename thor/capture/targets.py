"""The choice of a network's layers to capture.

Layers are identified by object, never by the order of names. A captured layer stays the user's object and gets a
subclass of its own class (taps.py and pair_taps.py). The factors of each kind are defined in thor/factors/formulas.py.

    kind         layer                                   weight            bias
    dense        nn.Dense                                [O, I]            in A's last coordinate
    conv         nn.Conv2d                               [O, I / g, k, k]  in A's last coordinate
    embedding    nn.Embedding                            [V, D]
    tied         nn.Embedding and decoders of its table  [V, D]            plain gradient
    norm_scale   nn.BatchNorm*, nn.LayerNorm: gamma      [C]
    norm_shift   the same: beta                          [C]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from mindspore import Parameter, nn

from first_order.cells import own_parameters
from thor.runtime import convolution

#: A Cell of another class that computes x W^T (+ bias) declares it by this class attribute: ``thor_kind = "dense"``.
#: It matters only for a decoder that shares an embedding's table.
KIND_ATTRIBUTE = "thor_kind"
#: Whether a weight is one that trains.
Trains = Callable[[Parameter], bool]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)  # BatchNorm3d has a BatchNorm2d inside
_BASES = (nn.Dense, nn.Conv2d, nn.Embedding, *NORMS)


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


@dataclass(frozen=True)
class LeftOut:
    """A layer with weights of its own, or a bias, that takes the plain gradient, and the reason."""

    name: str
    type: str
    reason: str


def _base_of(cell: nn.Cell) -> type | None:
    """The layer class whose ``construct`` the Cell runs, or None."""
    if type(cell) is convolution.PatchConv2d:
        return nn.Conv2d
    for base in _BASES:
        if isinstance(cell, base) and type(cell).construct is base.construct:
            return base
    return None


def _weights_of(cell: nn.Cell, base: type) -> list[Parameter]:
    """The weights that are preconditioned if a layer of this class is captured."""
    if base is nn.Embedding:
        return [cell.embedding_table]
    return [cell.gamma, cell.beta] if base in NORMS else [cell.weight]


def _reason_against(
    cell: nn.Cell, base: type | None, name: str, skip: list[re.Pattern[str]], norms: bool, trains: Trains
) -> str | None:
    if any(pattern.search(name) for pattern in skip):
        return "matches skip"
    if base is None:
        overridden = next((b.__name__ for b in _BASES if isinstance(cell, b)), None)
        return f"overrides {overridden}.construct" if overridden else "this type has no factors here"
    if base in NORMS and not norms:
        return "normalisation takes the plain gradient (norms=False)"
    if not any(trains(weight) for weight in _weights_of(cell, base)):
        return "frozen"
    if base is nn.Conv2d and cell.data_format != "NCHW":
        return f"data_format {cell.data_format}"
    return _reason_against_norm(cell, base) if base in NORMS else None


def _reason_against_norm(cell: nn.Cell, base: type) -> str | None:
    if base is nn.LayerNorm:
        if cell.begin_norm_axis != -1:  # it is the last axis of some inputs only
            return f"begin_norm_axis is {cell.begin_norm_axis}, and -1 alone is the last axis of any input"
        return None if len(cell.normalized_shape) == 1 else f"normalises over {len(cell.normalized_shape)} axes"
    if cell.use_batch_statistics is False:
        return "normalises with moving statistics"
    return None if getattr(cell, "data_format", "NCHW") == "NCHW" else f"data_format {cell.data_format}"


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
    groups: dict[int, list[tuple[str, nn.Cell]]] = {}
    left_out: list[LeftOut] = []
    elsewhere: dict[int, str] = {}  # id of a Parameter -> name of a Cell that has it and is left out
    tables = {id(cell.embedding_table) for _, cell in net.cells_and_names() if _base_of(cell) is nn.Embedding}
    for name, cell in net.cells_and_names():
        own = own_parameters(cell)
        if not own:
            continue
        base = nn.Dense if _is_tied_decoder(cell, tables) else _base_of(cell)
        reason = _reason_against(cell, base, name, patterns, norms, trains)
        if reason is None and base is not None:
            groups.setdefault(id(_weights_of(cell, base)[0]), []).append((name, cell))
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
    users: dict[int, set[int]] = {}  # id of a Parameter -> ids of the Cells that have it
    for _, cell in net.cells_and_names():
        for parameter in own_parameters(cell):
            users.setdefault(id(parameter), set()).add(id(cell))
    for index, target in enumerate(targets):
        if target.bias is not None and users[id(target.bias)] != {id(cell) for cell in target.cells}:
            targets[index] = replace(target, bias=None, a_dim=target.a_dim - 1)
            left_out.append(LeftOut(f"{target.name}.bias", type(target.cells[0]).__name__, "bias of other layers too"))
    return targets, left_out


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


def _is_tied_decoder(cell: nn.Cell, tables: set[int]) -> bool:
    """Whether a Cell declares itself dense and its weight is an embedding's table."""
    return getattr(type(cell), KIND_ATTRIBUTE, None) == "dense" and id(getattr(cell, "weight", None)) in tables


def _targets_of(members: list[tuple[str, nn.Cell]], trains: Trains) -> tuple[list[Target], list[LeftOut]]:
    """The targets of the Cells that share one weight, and the Cells and biases that are left out."""
    name, first = members[0]
    if _base_of(first) in NORMS:
        return _norm_targets(name, [cell for _, cell in members], trains), []
    if any(isinstance(cell, nn.Embedding) for _, cell in members):
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
    if all(_same_form(_target(member, trains, cell), form) for member, cell in members[1:]):
        return [_target(name, trains, *(cell for _, cell in members))], []
    return [], [LeftOut(n, type(c).__name__, f"{form.name}'s weight is used in several forms") for n, c in members]


def _target(name: str, trains: Trains, *cells: nn.Cell) -> Target:
    cell, label = cells[0], name or type(cells[0]).__name__
    if isinstance(cell, nn.Embedding):
        table = cell.embedding_table
        return Target(label, cells, "embedding", table, None, 1, *table.shape)
    bias = cell.bias if cell.has_bias and trains(cell.bias) else None
    homogeneous = int(bias is not None)
    if _base_of(cell) is nn.Dense:
        return Target(label, cells, "dense", cell.weight, bias, 1, cell.in_channels + homogeneous, cell.out_channels)
    _, channels, height, width = cell.weight.shape
    a_dim = channels * height * width + homogeneous
    return Target(label, cells, "conv", cell.weight, bias, cell.group, a_dim, cell.out_channels // cell.group)


def _tied_target(members: list[tuple[str, nn.Cell]]) -> Target | None:
    """The one target of an embedding and the decoders that share its table; None if the Cells are not such a group."""
    embeddings = [(name, cell) for name, cell in members if isinstance(cell, nn.Embedding)]
    if not embeddings or len(embeddings) == len(members):
        return None
    table = embeddings[0][1].embedding_table
    return Target(embeddings[0][0], tuple(cell for _, cell in members), "tied", table, None, 1, *table.shape)


def _norm_targets(name: str, cells: list[nn.Cell], trains: Trains) -> list[Target]:
    """One target for the scale and one for the shift."""
    label, cell = name or type(cells[0]).__name__, cells[0]
    pairs = (("gamma", "norm_scale", cell.gamma), ("beta", "norm_shift", cell.beta))
    return [Target(f"{label}.{part}", tuple(cells), kind, weight, None, 1, 1, weight.shape[0])
            for part, kind, weight in pairs if trains(weight)]  # fmt: skip


def _same_form(one: Target, other: Target) -> bool:
    return (one.kind, one.copies, one.a_dim, one.g_dim, id(one.bias)) == (
        other.kind, other.copies, other.a_dim, other.g_dim, id(other.bias))  # fmt: skip


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
