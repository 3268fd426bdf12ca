"""Networks to train. Each module has factory functions that take plain numbers and return a Cell."""

from models.autoencoder import autoencoder
from models.bert import bert_base, bert_large, bert_tiny
from models.causal_lm import causal_lm
from models.lenet import lenet5
from models.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from models.resnet_cifar import resnet8, resnet20, resnet32, resnet44, resnet56
from models.smallconv import smallconv
from models.vit import vit

__all__ = [
    "autoencoder",
    "bert_base",
    "bert_large",
    "bert_tiny",
    "causal_lm",
    "lenet5",
    "resnet101",
    "resnet152",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet8",
    "smallconv",
    "vit",
]
