"""Networks to train: each module has factory functions that take plain numbers and return a Cell."""

from models.autoencoder import autoencoder
from models.lenet import lenet5
from models.resnet_cifar import resnet20, resnet32, resnet44, resnet56
from models.smallconv import smallconv

__all__ = ["autoencoder", "lenet5", "resnet20", "resnet32", "resnet44", "resnet56", "smallconv"]
