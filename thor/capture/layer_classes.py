"""The classes of layers that can be captured: MindSpore's, and those that a user declares."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any

from mindspore import Parameter, mint, nn

from thor.runtime import convolution

#: What a user may declare.
DECLARED = ("dense", "conv", "embedding")

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, mint.nn.Conv2d, mint.nn.Conv3d)


@dataclass(frozen=True)
class LayerClass:
    """How a class of layers is captured.

    Attributes:
        base: the class whose ``construct`` the layer runs.
        kind: "dense", x W^T + b for the last axis of x; "conv", "conv_transpose", "embedding" or "norm".
        weight: attribute of the weight; the scale of a normalisation.
        bias: attribute of the bias, or the shift of a normalisation; None if there is none.
        transposed: whether a dense layer's weight is [I, O].
        standardized: whether a convolution brings each output's weights to mean 0 and variance 1 before it uses them.
        norm: over what a normalisation normalises: "layer", "batch" or "group"; else "".
    """

    base: type
    kind: str
    weight: str
    bias: str | None
    transposed: bool = False
    standardized: bool = False
    norm: str = ""


def _norm(base: type, over: str, weight: str = "gamma", bias: str = "beta") -> LayerClass:
    return LayerClass(base, "norm", weight, bias, norm=over)


#: The latest declaration first.
_CLASSES = [
    LayerClass(nn.Dense, "dense", "weight", "bias"),
    LayerClass(mint.nn.Linear, "dense", "weight", "bias"),
    LayerClass(nn.Conv2d, "conv", "weight", "bias"),
    LayerClass(nn.Conv1d, "conv", "weight", "bias"),
    LayerClass(nn.Conv3d, "conv", "weight", "bias"),
    LayerClass(mint.nn.Conv2d, "conv", "weight", "bias"),
    LayerClass(mint.nn.Conv3d, "conv", "weight", "bias"),
    LayerClass(nn.Conv1dTranspose, "conv_transpose", "weight", None),
    LayerClass(nn.Conv2dTranspose, "conv_transpose", "weight", None),
    LayerClass(nn.Conv3dTranspose, "conv_transpose", "weight", None),
    LayerClass(nn.Embedding, "embedding", "embedding_table", None),
    LayerClass(mint.nn.Embedding, "embedding", "weight", None),
    _norm(nn.BatchNorm1d, "batch"),
    _norm(nn.BatchNorm2d, "batch"),  # BatchNorm3d has a BatchNorm2d inside
    _norm(nn.LayerNorm, "layer"),
    _norm(nn.GroupNorm, "group"),
    _norm(nn.InstanceNorm1d, "group"),
    _norm(nn.InstanceNorm2d, "group"),
    _norm(nn.InstanceNorm3d, "group"),
    _norm(mint.nn.BatchNorm1d, "batch", "weight", "bias"),
    _norm(mint.nn.BatchNorm2d, "batch", "weight", "bias"),
    _norm(mint.nn.LayerNorm, "layer", "weight", "bias"),
    _norm(mint.nn.GroupNorm, "group", "weight", "bias"),
]


def register(
    cell_class: type[nn.Cell],
    kind: str = "dense",
    weight: str = "weight",
    bias: str | None = "bias",
    *,
    transposed: bool = False,
    standardized: bool = False,
) -> None:
    """Declare a class of Cells of one input as layers that THOR captures.

    Args:
        cell_class: the class. Subclasses that override ``construct`` are declared on their own.
        kind: "dense" for a Cell that returns x W^T + b, for the last axis of x, with no activation behind it;
            "conv" for a subclass of a convolution of ``nn`` or ``mint.nn`` that returns a convolution;
            "embedding" for a Cell that returns rows of a table.
        weight: name of the attribute that holds the weight, [O, I] of a dense layer, or the table.
        bias: name of the attribute that holds the bias [O]; None if there is none. A Cell whose bias is None has none.
        transposed: whether the weight of a dense layer is [I, O], for x W + b.
        standardized: whether a convolution brings the weights of each output to mean 0 and variance 1 before it uses
            them (weight standardization, Qiao et al. 2019).
    """
    if not isinstance(cell_class, type) or not issubclass(cell_class, nn.Cell):
        raise TypeError(f"cell_class must be a class of nn.Cell, but got {cell_class!r}")
    if "__class__" in cell_class.construct.__code__.co_freevars:
        raise ValueError(
            f"construct of {cell_class.__name__} calls super(), which MindSpore resolves by the class of a captured "
            f"layer when it compiles, and never ends: write out what it computes"
        )
    if kind not in DECLARED:
        raise ValueError(f"kind must be one of {', '.join(DECLARED)}, but got {kind!r}")
    if transposed and kind != "dense":
        raise ValueError(f"transposed is for the kind dense, but got kind={kind!r}")
    if standardized and kind != "conv":
        raise ValueError(f"standardized is for the kind conv, but got kind={kind!r}")
    if kind == "conv" and not issubclass(cell_class, _CONVOLUTIONS):
        names = ", ".join(f"{each.__module__.split('.')[1]}.{each.__name__}" for each in _CONVOLUTIONS)
        raise TypeError(f"cell_class must be a subclass of {names} for kind='conv', but got {cell_class.__name__}")
    bias = None if kind == "embedding" or standardized else bias
    _CLASSES.insert(0, LayerClass(cell_class, kind, weight, bias, transposed, standardized))


def class_of(cell: nn.Cell) -> LayerClass | None:
    """The layer class whose ``construct`` a Cell runs, before it was captured; None if it is none of them."""
    own: Any = vars(cell).get("thor_original", type(cell))
    if own is convolution.PatchConv2d:
        own = nn.Conv2d
    source = rewritten_from(own)
    if source is not None:
        return next((replace(each, base=own) for each in _CLASSES if _full_name(each.base) == _full_name(source)), None)
    return next(
        (each for each in _CLASSES if issubclass(own, each.base) and own.construct is each.base.construct),  # type: ignore[attr-defined]
        None,
    )


def rewritten_from(cell_class: type) -> type | None:
    """The class that MindSpore has rewritten into this one, as ``ms.amp.auto_mixed_precision`` does; None if none.

    The new class computes the same, in other types. It is named after the old one, which it inherits from, and is made
    of an object of the old one.
    """
    parents = [parent for parent in cell_class.__bases__ if parent is not nn.Cell]
    if len(parents) == 0 or not re.fullmatch(rf"{parents[0].__name__}Opt(_\d+)?", cell_class.__name__):
        return None
    made_of = list(inspect.signature(cell_class.__init__).parameters)[1:]  # type: ignore[misc]
    return parents[0] if made_of == ["obj"] else None


def _full_name(cell_class: type) -> tuple[str, str]:
    """Name and file of a class: MindSpore imports the file of a layer again, by its short name, to rewrite it again."""
    return cell_class.__name__, cell_class.__module__.rsplit(".", 1)[-1]


def overridden_class(cell: nn.Cell) -> str | None:
    """The name of a layer class whose ``construct`` a Cell's class replaces by another one; None if there is none."""
    return next((each.base.__name__ for each in _CLASSES if isinstance(cell, each.base)), None)


def parameter_of(cell: nn.Cell, name: str | None) -> Parameter | None:
    """The Parameter that a Cell holds under a name; None if it holds none there."""
    value = getattr(cell, name, None) if name else None
    return value if isinstance(value, Parameter) else None


def is_embedding(cell: nn.Cell) -> bool:
    """Whether a Cell is an embedding."""
    found = class_of(cell)
    return found is not None and found.kind == "embedding"
