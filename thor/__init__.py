"""A second-order optimizer toolkit for MindSpore, centred on THOR."""

from thor.capture.attach import detach
from thor.curvature.trace_rule import Decision, RefreshRecord, TraceRule
from thor.distributed.ranks import Sharing
from thor.factors.blocks import BlockPlan
from thor.optimizer import THOR
from thor.records import LayerRecord
from thor.runtime import device
from thor.settings import schedules
from thor.settings.loss_scale import DynamicLossScale
from thor.settings.schedules import ExponentialDamping, GrowingInterval, PolynomialRate
from thor.train_step import TrainStep

__version__ = "0.1.0"
__all__ = [
    "THOR", "BlockPlan", "Decision", "DynamicLossScale", "ExponentialDamping", "GrowingInterval", "LayerRecord",
    "PolynomialRate", "RefreshRecord", "Sharing", "TraceRule", "TrainStep", "detach", "device", "schedules",
]  # fmt: skip
