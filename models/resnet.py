"""ResNet-18, 34, 50, 101 and 152 for ImageNet (He et al., 2016), v1.5, with the usual parameter names.

v1.5 is the form in common use: the stride of a bottleneck is in its 3 x 3 convolution, while the paper has it in the
1 x 1 convolution before. v1.5 is more accurate, and all weights have the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Tensor, nn
from mindspore.common.initializer import HeNormal, HeUniform, Initializer, initializer

# Initializers of convolutions. The common Momentum recipes and THOR's released code use he_normal with fan_out,
# although THOR's configuration says HeUniform. With ReLU, fan_in keeps the scale of activations and fan_out the scale
# of gradients.
_INITIALIZERS: dict[str, Initializer] = {
    "he_normal": HeNormal(mode="fan_out", nonlinearity="relu"),
    "he_uniform": HeUniform(mode="fan_in", nonlinearity="relu"),
}


def conv(in_channels: int, out_channels: int, kernel: int, stride: int, init: str = "he_normal") -> nn.Conv2d:
    """A convolution without bias, padded by half its kernel; `init` is `he_normal` or `he_uniform`."""
    return nn.Conv2d(
        in_channels,
        out_channels,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        weight_init=_INITIALIZERS[init],
    )


class BasicBlock(nn.Cell):
    """Two 3 x 3 convolutions and a shortcut; the block of ResNet-18 and 34."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, init: str) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, channels, 3, stride, init)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, 1, init)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(in_channels, channels, stride, init)

    def construct(self, x: Tensor) -> Tensor:
        """The block's output [B, channels, H / stride, W / stride]."""
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The normalisation before the sum with the shortcut."""
        return self.bn2


class Bottleneck(nn.Cell):
    """Convolutions of 1 x 1, 3 x 3 with the stride, and 1 x 1 to four times the channels, and a shortcut.

    The block of ResNet-50, 101 and 152.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, init: str) -> None:
        super().__init__()
        outputs = channels * self.expansion
        self.conv1 = conv(in_channels, channels, 1, 1, init)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, stride, init)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = conv(channels, outputs, 1, 1, init)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(in_channels, outputs, stride, init)

    def construct(self, x: Tensor) -> Tensor:
        """The block's output [B, 4 channels, H / stride, W / stride]."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + self.downsample(x))

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """The normalisation before the sum with the shortcut."""
        return self.bn3


class ResNet(nn.Cell):
    """Images [B, C, H, W] to logits [B, classes]; H and W are usually 224, and at least 32.

    Args:
        block: BasicBlock or Bottleneck.
        blocks: Blocks in each of the four stages.
        num_classes: Number of outputs; the released THOR configuration has 1001.
        in_channels: Number of image channels, 3 for colour.
        init: Initializer of the convolutions, `he_normal` or `he_uniform`.
        zero_init_last: Start with the scale of each block's last normalisation at zero, so that the block equals its
            shortcut (Goyal et al., 2017), as in THOR's released code.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        num_classes: int = 1000,
        in_channels: int = 3,
        init: str = "he_normal",
        zero_init_last: bool = False,
    ) -> None:
        super().__init__()
        if init not in _INITIALIZERS:
            raise ValueError(f"init must be one of {', '.join(_INITIALIZERS)}, and is {init!r}")
        self.conv1 = conv(in_channels, 64, 7, 2, init)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        inputs = [64] + [width * block.expansion for width in (64, 128, 256)]
        self.layer1 = _stage(block, inputs[0], 64, blocks[0], 1, init)
        self.layer2 = _stage(block, inputs[1], 128, blocks[1], 2, init)
        self.layer3 = _stage(block, inputs[2], 256, blocks[2], 2, init)
        self.layer4 = _stage(block, inputs[3], 512, blocks[3], 2, init)
        self.fc = nn.Dense(512 * block.expansion, num_classes)
        if zero_init_last:
            self._start_as_shortcuts()

    def construct(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))

    def _start_as_shortcuts(self) -> None:
        """Set the scale of each block's last normalisation to zero."""
        for _, cell in self.cells_and_names():
            if isinstance(cell, BasicBlock | Bottleneck):
                gamma = cell.last_norm.gamma
                gamma.set_data(initializer("zeros", gamma.shape, gamma.dtype))


def resnet18(
    num_classes: int = 1000, in_channels: int = 3, init: str = "he_normal", zero_init_last: bool = False
) -> ResNet:
    """ResNet-18: 11,689,512 weights."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels, init, zero_init_last)


def resnet34(
    num_classes: int = 1000, in_channels: int = 3, init: str = "he_normal", zero_init_last: bool = False
) -> ResNet:
    """ResNet-34: 21,797,672 weights."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels, init, zero_init_last)


def resnet50(
    num_classes: int = 1000, in_channels: int = 3, init: str = "he_normal", zero_init_last: bool = False
) -> ResNet:
    """ResNet-50 v1.5: 25,557,032 weights."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels, init, zero_init_last)


def resnet101(
    num_classes: int = 1000, in_channels: int = 3, init: str = "he_normal", zero_init_last: bool = False
) -> ResNet:
    """ResNet-101 v1.5: 44,549,160 weights."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels, init, zero_init_last)


def resnet152(
    num_classes: int = 1000, in_channels: int = 3, init: str = "he_normal", zero_init_last: bool = False
) -> ResNet:
    """ResNet-152 v1.5: 60,192,808 weights."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes, in_channels, init, zero_init_last)


def _shortcut(in_channels: int, out_channels: int, stride: int, init: str) -> nn.Cell:
    """The input itself, or a normalised 1 x 1 convolution where the block changes its shape."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.SequentialCell(conv(in_channels, out_channels, 1, stride, init), nn.BatchNorm2d(out_channels))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], in_channels: int, channels: int, count: int, stride: int, init: str
) -> nn.SequentialCell:
    """Blocks of one width; the first one changes width and size."""
    cells = [block(in_channels, channels, stride, init)]
    cells += [block(channels * block.expansion, channels, 1, init) for _ in range(count - 1)]
    return nn.SequentialCell(cells)
