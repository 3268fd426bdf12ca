"""The choice of an attention's projections to capture.

The attention is ``nn.MultiheadAttention``; attention.py has the mathematics.

    projection                   weight         bias
    in_proj                      [3 E, E]       in A's last coordinate: one dense layer of three copies
    q_proj, k_proj, v_proj       [E, width]     plain gradient: one Parameter [3 E] holds the three biases
    out_proj                     [E, E]         in A's last coordinate
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mindspore import Parameter, nn

from first_order.cells import own_parameters
from thor.capture.layer_classes import class_of


@dataclass(frozen=True)
class Projection:
    """A weight of one or several attentions.

    Attributes:
        name: the name of the first attention, and that of the projection.
        cells: the attentions.
        holders: ids of the Cells that hold the weight: an attention, or its ``out_proj``.
        weight: [copies O, I].
        bias: [copies O]; None if there is none.
        copies: 3 for the weight that is thirds for queries, keys and values, else 1.
    """

    name: str
    cells: tuple[nn.Cell, ...]
    holders: frozenset[int]
    weight: Parameter
    bias: Parameter | None
    copies: int


@dataclass
class Found:
    """The projections of a network.

    Attributes:
        projections: those that are captured.
        left_out: (name, type of the Cell, reason) of the others, and of biases.
        cells: ids of the attentions and of their ``out_proj``, which are no layers besides.
        elsewhere: id of a weight that is left out -> its name.
    """

    projections: list[Projection] = field(default_factory=list)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    cells: set[int] = field(default_factory=set)
    elsewhere: dict[int, str] = field(default_factory=dict)


def users_of(net: nn.Cell) -> dict[int, set[int]]:
    """Id of each Parameter of a network -> ids of the Cells that hold it."""
    users: dict[int, set[int]] = {}
    for _, cell in net.cells_and_names():
        for parameter in own_parameters(cell):
            users.setdefault(id(parameter), set()).add(id(cell))
    return users


def find_projections(
    net: nn.Cell, skips: Callable[[str], bool], trains: Callable[[Parameter], bool], users: Mapping[int, set[int]]
) -> Found:
    """The projections of a network's attentions.

    Args:
        net: the network.
        skips: whether a layer of this name is skipped.
        trains: whether a weight is one that trains.
        users: as of :func:`users_of`.
    """
    found = Found()
    groups: dict[int, list[tuple[Projection, str | None]]] = {}
    for name, cell in net.cells_and_names():
        layer_class = class_of(cell)
        if layer_class is None or layer_class.kind != "attention":
            continue
        found.cells |= {id(cell), id(cell.out_proj)}
        for each in _projections(name, cell):
            reason = "matches skip" if skips(name) or skips(each.name) else _reason_against(cell, each, trains)
            groups.setdefault(id(each.weight), []).append((each, reason))
        if cell.in_proj_weight is None and cell.in_proj_bias is not None:
            found.left_out.append((f"{name}.in_proj_bias".lstrip("."), type(cell).__name__, "bias of three weights"))
    for members in groups.values():
        _decide(members, found, trains, users)
    return found


def _projections(name: str, cell: nn.MultiheadAttention) -> Iterator[Projection]:
    """All projections of one attention."""

    def one(part: str, weight: Parameter, bias: Parameter | None, copies: int, holder: nn.Cell) -> Projection:
        return Projection(f"{name}.{part}".lstrip("."), (cell,), frozenset({id(holder)}), weight, bias, copies)

    if cell.in_proj_weight is not None:
        yield one("in_proj", cell.in_proj_weight, cell.in_proj_bias, 3, cell)
    else:
        for part in ("q_proj", "k_proj", "v_proj"):
            yield one(part, getattr(cell, f"{part}_weight"), None, 1, cell)
    yield one("out_proj", cell.out_proj.weight, cell.out_proj.bias, 1, cell.out_proj)


def _reason_against(cell: nn.MultiheadAttention, each: Projection, trains: Callable[[Parameter], bool]) -> str | None:
    if cell.bias_k is not None or cell.add_zero_attn:
        return "an attention with add_bias_kv or add_zero_attn"
    return None if trains(each.weight) else "frozen"


def _decide(
    members: list[tuple[Projection, str | None]], found: Found, trains: Callable[[Parameter], bool],
    users: Mapping[int, set[int]],
) -> None:  # fmt: skip
    """Capture the projections that have one weight, or leave all of them out."""
    first, _ = members[0]
    holders = frozenset().union(*(each.holders for each, _ in members))
    common = next((reason for _, reason in members if reason is not None), None)
    if common is None and users[id(first.weight)] != holders:
        common = "weight of other layers too"
    if common is None and any((e.copies, id(e.bias)) != (first.copies, id(first.bias)) for e, _ in members):
        common = "its weight is used in several forms"
    if common is not None:
        found.elsewhere[id(first.weight)] = first.name
        found.left_out += [(each.name, type(each.cells[0]).__name__, reason or common) for each, reason in members]
        return
    bias = first.bias if first.bias is not None and trains(first.bias) else None
    if bias is not None and users[id(bias)] != holders:
        bias = None
        found.left_out.append((f"{first.name}.bias", type(first.cells[0]).__name__, "bias of other layers too"))
    cells = tuple(each.cells[0] for each, _ in members)
    found.projections.append(Projection(first.name, cells, holders, first.weight, bias, first.copies))
