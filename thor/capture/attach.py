"""Attach taps to the captured layers, and detach them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mindspore import Parameter, nn

from first_order.cells import delete_unregistered, set_unregistered
from thor.capture.attention import SLOTS, TappedAttention, port_of, slot_of
from thor.capture.layer_classes import class_of, is_embedding
from thor.capture.norm_taps import NormTap
from thor.capture.pair_taps import (
    AsImages,
    AsRows,
    ChannelsFirst,
    EmbeddingTap,
    PairPort,
    PlanesJoined,
    RowsPort,
    RowsTap,
    StandardizedPort,
    StandardizedTap,
    TiedDecoderTap,
    TiedEmbeddingTap,
    WithoutLast,
    plain,
    tapped_pair,
)
from thor.capture.taps import InputTap, OutputPort, OutputTap, Port, TappedConv2d, TappedDense, Untapped
from thor.capture.targets import Target
from thor.factors.statistics import BATCH, EXPAND, POOLED, REDUCE, rows_of, statistics_of
from thor.runtime import convolution, device
from thor.runtime.geometry import geometry_of
from thor.runtime.graph_ops import shared

_TAPPED: dict[type | tuple[type, str], type] = {
    nn.Dense: TappedDense, nn.Conv2d: TappedConv2d, nn.MultiheadAttention: TappedAttention,
}  # fmt: skip

#: Kinds whose A and G are sums over rows of inputs and of output gradients.
_BY_ROWS = ("dense", "conv", "conv_transpose")

PORTS = ("thor_scale", "thor_shift", *SLOTS)
_ATTRIBUTES = (*PORTS, "thor_geometry", "thor_as_patches", "thor_plain", "thor_original")


def holds(cell: nn.Cell, weight: Parameter) -> bool:
    """Whether a captured Cell, or a child that it computes for, has the weight of its target now."""
    return any(parameter is weight for parameter in cell.get_parameters())


def attach(
    target: Target, a_cut, g_cut, a_parameters, g_parameters, order: str = "channel", share: float = 1.0,
    sharing: str = POOLED,
) -> list[Port | PairPort]:  # fmt: skip
    """Attach ports to every Cell of the target and return the ports.

    ``a_parameters`` and ``g_parameters`` are (blocks, probe, uses) of A and of G. Factors in blocks are computed from
    the first ``share`` of the examples, diagonal factors, which cost little, from all. ``sharing`` is the weight
    sharing (formulas.py).
    """
    ports: list[Port | PairPort] = []
    for cell in target.cells:
        found = class_of(cell)
        by_rows = target.kind in _BY_ROWS
        if found is not None and found.kind == "attention":
            ports.append(_attach_attention(cell, target, a_cut, g_cut, a_parameters, g_parameters, share, sharing))
        elif by_rows and found is not None and (found.base not in _TAPPED or target.channel_last):
            port = _rows_port(cell, target, a_cut, g_cut, a_parameters, g_parameters, order, share, sharing)
            _attach_pair(cell, "thor_scale", port)
            ports.append(port)
        elif by_rows:
            ports += _attach_two(cell, target, a_cut, g_cut, a_parameters, g_parameters, order, share, sharing)
        else:
            port = PairPort(_pair_tap(cell, target, g_cut, share, sharing), a_parameters, g_parameters)
            _attach_pair(cell, "thor_shift" if target.kind == "norm_shift" else "thor_scale", port)
            ports.append(port)
    return ports


def _attach_two(cell, target, a_cut, g_cut, a_parameters, g_parameters, order, share, sharing) -> list[Port | PairPort]:
    """Attach a port to the input and one to the output before the activation, or one to both together."""
    geometry = geometry_of(cell) if target.kind == "conv" else None
    ports: list[Port | PairPort]
    if sharing == EXPAND:
        thor_input = shared(Untapped)
        thor_output = _rows_port(cell, target, a_cut, g_cut, a_parameters, g_parameters, order, share, sharing)
        ports = [thor_output]
    else:
        inputs, outputs = _statistics(target, a_cut, g_cut, geometry, order, share, sharing)
        thor_input = Port(shared(InputTap, inputs), *a_parameters)
        thor_output = OutputPort(shared(OutputTap, outputs), *g_parameters)
        ports = [thor_input, thor_output]
    original = type(cell)
    values = {"thor_input": thor_input, "thor_output": thor_output, "thor_geometry": geometry,
              "thor_as_patches": device.convolution_path() == "patches", "thor_original": original}  # fmt: skip
    set_unregistered(cell, **values)
    cell.__class__ = _tapped_class(original)
    return ports


def _attach_attention(cell, target, a_cut, g_cut, a_parameters, g_parameters, share, sharing) -> PairPort:
    """Attach a port to one of an attention's projections."""
    of_keys = POOLED if sharing == REDUCE else sharing  # attention.py says why
    statistics, those_of_keys = (
        _statistics(target, a_cut, g_cut, None, "channel", share, each) for each in (sharing, of_keys)
    )
    by_example, slot, rows = sharing == REDUCE or share < 1.0, slot_of(cell, target.weight), rows_of(sharing, "dense")
    port = port_of(cell, slot, statistics, those_of_keys, rows, by_example, a_parameters, g_parameters)
    if "thor_original" not in vars(cell):
        original = type(cell)
        set_unregistered(cell, thor_original=original, **dict.fromkeys(SLOTS))
        cell.__class__ = _tapped_class(original)
    set_unregistered(cell, **{slot: port})
    return port


def _statistics(
    target, a_cut, g_cut, geometry, order, share, sharing, standardized: bool = False
) -> tuple[nn.Cell, nn.Cell]:
    """The Cells that compute the statistics of A and of G of a dense layer or a convolution."""
    in_features = target.bias is not None and not a_cut.bias_apart
    inputs = statistics_of(
        a_cut, share, f"{target.kind}_input", in_features, geometry, target.copies, order, sharing, standardized
    )
    outputs = statistics_of(g_cut, share, f"{target.kind}_output", False, geometry, target.copies, sharing=sharing)
    return inputs, outputs


def _rows_port(cell, target, a_cut, g_cut, a_parameters, g_parameters, order, share, sharing) -> PairPort:
    """The port for input and output together of a dense layer or a convolution."""
    found = class_of(cell)
    assert found is not None
    geometry = None if target.kind == "dense" else geometry_of(cell)
    statistics = _statistics(target, a_cut, g_cut, geometry, order, share, sharing, found.standardized)
    forms = (*statistics, rows_of(sharing, target.kind, geometry), *_forms(cell, target))
    if found.standardized:
        return StandardizedPort(shared(StandardizedTap, *forms), target.weight, a_parameters, g_parameters)
    return RowsPort(shared(RowsTap, *forms), a_parameters, g_parameters)


def _forms(cell: nn.Cell, target: Target) -> tuple[nn.Cell, nn.Cell]:
    """The Cells that bring a layer's input and its output gradient into the shapes that the statistics take."""
    if target.kind == "dense":
        return shared(AsRows), shared(AsRows)
    if target.channel_last:
        return shared(ChannelsFirst), shared(ChannelsFirst)
    if isinstance(cell, nn.Conv2dTranspose) and cell.output_padding not in (0, (0, 0)):
        appended = cell.output_padding
        rows, columns = (appended, appended) if isinstance(appended, int) else appended
        return shared(AsImages), shared(WithoutLast, rows, columns)
    if target.weight.ndim < 5:
        return shared(AsImages), shared(AsImages)
    # the side that patches are taken of keeps its three axes
    forms = shared(AsImages), shared(PlanesJoined)
    return forms if target.kind == "conv" else forms[::-1]


def _pair_tap(cell: nn.Cell, target: Target, g_cut, share: float, sharing: str) -> nn.Cell:
    if target.kind.startswith("norm"):
        return _norm_tap(cell, target, sharing)
    rows, of_rows = rows_of(sharing, "dense"), EXPAND if sharing == EXPAND else POOLED
    if is_embedding(cell):
        tap = EmbeddingTap if target.kind == "embedding" else TiedEmbeddingTap
        return shared(tap, target.a_dim, statistics_of(g_cut, share, "dense_output", sharing=of_rows), rows)
    return shared(TiedDecoderTap, statistics_of(g_cut, share, "dense_input", sharing=of_rows), rows)


def _norm_tap(cell: nn.Cell, target: Target, sharing: str) -> nn.Cell:
    found = class_of(cell)
    assert found is not None
    by_row = found.norm == "layer" and sharing == EXPAND
    epsilon = float(cell.epsilon if hasattr(cell, "epsilon") else cell.eps)
    # an instance normalisation has a group for every channel
    groups = getattr(cell, "num_groups", target.g_dim) if found.norm == "group" else 0
    rows = rows_of(EXPAND if by_row else POOLED, target.kind)
    return shared(NormTap, found.norm, target.kind == "norm_scale", epsilon, groups, rows, by_row)


def _attach_pair(cell: nn.Cell, slot: str, port: PairPort) -> None:
    """Attach a port after the layer's own computation; a normalisation layer may get a second one."""
    if "thor_original" not in vars(cell):
        original = type(cell)
        values = {"thor_plain": plain(cell, original), "thor_scale": None, "thor_shift": None}
        set_unregistered(cell, thor_original=original, **values)
        cell.__class__ = _pair_class(original)
    set_unregistered(cell, **{slot: port})


def _tapped_class(original: type) -> type:
    if original is convolution.PatchConv2d:
        original = nn.Conv2d
    if original not in _TAPPED:
        base = next(base for base in (nn.Dense, nn.Conv2d, nn.MultiheadAttention) if issubclass(original, base))
        _TAPPED[original] = type(f"Tapped{original.__name__}", (_TAPPED[base], original), {})
    return _TAPPED[original]


def _pair_class(original: type) -> type:
    key = (original, "pair")  # an nn.Dense may be captured as a dense layer or as a tied decoder
    if key not in _TAPPED:
        _TAPPED[key] = type(f"Tapped{original.__name__}", (tapped_pair(original), original), {})
    return _TAPPED[key]


@contextmanager
def open_ports(ports: Sequence[Port | PairPort], examples: int) -> Iterator[None]:
    """Let taps gather factors within the context, from a batch of so many examples, 0 if their number is unknown.

    Both are read when a graph is compiled, and by an uncompiled step at each call.
    """
    for port in ports:
        port.active = True
    BATCH.examples = examples
    try:
        yield
    finally:
        BATCH.examples = 0
        for port in ports:
            port.active = False


def tapped_cells(net: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """The names and Cells of the network's captured layers."""
    for name, cell in net.cells_and_names():
        if "thor_original" in vars(cell):
            yield name, cell


@contextmanager
def left_as_found(net: nn.Cell) -> Iterator[None]:
    """At the end of the context, detach all captured layers, and restore those that ran as patches at its start."""
    patched = convolution.patched(net)
    try:
        yield
    finally:
        detach(net)
        convolution.make_patched(patched)


def detach(net: nn.Cell) -> int:
    """Undo all changes by THOR and its fast convolutions to the network; return the number of layers restored."""
    if not isinstance(net, nn.Cell):
        raise TypeError(f"net must be an nn.Cell, the network that THOR was made for, but got a {type(net).__name__}")
    cells = [cell for _, cell in tapped_cells(net)]
    restored = len({id(cell) for cell in (*cells, *convolution.patched(net))})
    for cell in cells:
        cell.__class__ = cell.thor_original
        keep = ("thor_geometry",) if type(cell) is convolution.PatchConv2d else ()
        for name in _ATTRIBUTES:
            if name in vars(cell) and name not in keep:
                delete_unregistered(cell, name)
    convolution.restore(net)
    return restored
