"""The networks of the package mindcv that scripts/bench/zoo.py measures: one of each family, its smallest variant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import mindspore as ms
import numpy as np
from mindspore import nn

import thor

#: Pixels a side, where a network takes any size: its last maps have 2 x 2 pixels or so, and a BatchNorm 16 values.
SMALL = 64
CLASSES = 1000  # the default of all networks


@dataclass(frozen=True)
class Family:
    """One network of a family, and the smallest batch that it is measured with.

    Attributes:
        model: name of the function that makes the network.
        image: pixels a side.
        batch: examples.
    """

    model: str
    image: int = SMALL
    batch: int = 4


#: By the name of the module in mindcv.models. Transformers with a position for each patch take one size of image only.
#: So do Inception v3 and VGG, which have a Dense layer of whole maps.
FAMILIES: Mapping[str, Family] = {
    "bit": Family("BiT_resnet50"),
    "cait": Family("cait_xxs24_224", 224, 2),
    "cmt": Family("cmt_tiny", 160, 2),
    "coat": Family("coat_tiny", 224, 2),
    "convit": Family("convit_tiny", 224, 2),
    "convnext": Family("convnextv2_atto"),
    "crossvit": Family("crossvit_9", 240, 2),
    "densenet": Family("densenet121"),
    "dpn": Family("dpn92"),
    "edgenext": Family("edgenext_xx_small"),
    "efficientnet": Family("efficientnet_b0"),
    "ghostnet": Family("ghostnet_050"),
    "googlenet": Family("googlenet"),
    "halonet": Family("halonet_50t", 256, 2),
    "hrnet": Family("hrnet_w32"),
    "inceptionv3": Family("inception_v3", 299, 2),
    "inceptionv4": Family("inception_v4", 96),
    "mae": Family("mae_b_16_224_finetune", 224, 2),
    "mixnet": Family("mixnet_s"),
    "mlpmixer": Family("mlp_mixer_s_p16", 224, 2),
    "mnasnet": Family("mnasnet_050"),
    "mobilenetv1": Family("mobilenet_v1_025"),
    "mobilenetv2": Family("mobilenet_v2_035_96"),
    "mobilenetv3": Family("mobilenet_v3_small_075"),
    "mobilevit": Family("mobilevit_xx_small"),
    "nasnet": Family("nasnet_a_4x1056"),
    "pit": Family("pit_ti", 224, 2),
    "pnasnet": Family("pnasnet"),
    "poolformer": Family("poolformer_s12"),
    "pvt": Family("pvt_tiny", 224, 2),
    "pvtv2": Family("pvt_v2_b0", 224, 2),
    "regnet": Family("regnet_x_200mf"),
    "repmlp": Family("repmlp_t224", 224, 2),
    "repvgg": Family("repvgg_a0"),
    "res2net": Family("res2net50"),
    "resnest": Family("resnest14"),
    "resnet": Family("resnet18"),
    "resnetv2": Family("resnetv2_50"),
    "rexnet": Family("rexnet_09"),
    "senet": Family("seresnet18"),
    "shufflenetv1": Family("shufflenet_v1_g3_05"),
    "shufflenetv2": Family("shufflenet_v2_x0_5"),
    "sknet": Family("skresnet18"),
    "squeezenet": Family("squeezenet1_1"),
    "swintransformer": Family("swin_tiny", 224, 2),
    "swintransformerv2": Family("swinv2_tiny_window8", 256, 2),
    "vgg": Family("vgg11", 224, 2),
    "visformer": Family("visformer_tiny_v2", 224, 2),
    "vit": Family("vit_b_32_224", 224, 2),
    "volo": Family("volo_d1", 224, 2),
    "xception": Family("xception"),
    "xcit": Family("xcit_tiny_12_p16_224", 224, 2),
}


def _declare_standardised() -> None:
    """The convolutions of BiT standardise their weights."""
    from mindcv.models.bit import StdConv2d

    thor.register(StdConv2d, kind="conv", standardized=True)


#: family -> a function that calls ``thor.register`` for layers of the family's own, as a
#: user of the network would. It is called once a process, before the network is given to THOR.
DECLARATIONS: Mapping[str, Callable[[], None]] = {"bit": _declare_standardised}


@functools.cache
def declare(family: str) -> None:
    """Declare the layers of a family's own to THOR; the second call in a process does nothing."""
    if family in DECLARATIONS:
        DECLARATIONS[family]()


def make(family: str, model: Callable[..., nn.Cell] | None = None, **arguments: Any) -> nn.Cell:
    """Make a network of a family, in training mode and without dropout, and declare the family's own layers.

    Args:
        family: a key of FAMILIES.
        model: what makes the network; None for the family's own function.
        arguments: of that function.
    """
    from mindcv.models import registry, rexnet

    declare(family)
    ms.set_seed(0)
    np.random.seed(0)
    with ExitStack() as changes:
        if family == "rexnet":  # it reshapes an initial value, which MindSpore has not computed by then
            changes.enter_context(mock.patch.object(rexnet.init, "initializer", _computed(rexnet.init.initializer)))
        net = (model or registry.model_entrypoint(FAMILIES[family].model))(**arguments)
    without_dropout(net)
    net.set_train()
    return net


def _computed(initializer: Callable[..., Any]) -> Callable[..., Any]:
    """An initializer whose values are computed at once."""
    return lambda *arguments: initializer(*arguments).init_data()


def without_dropout(net: nn.Cell) -> None:
    """Turn dropout and stochastic depth off, in place: losses of the same weights and batch are equal then."""
    for _, cell in net.cells_and_names():
        if isinstance(cell, nn.Dropout):
            cell.p = 0.0
