"""ResNet-8, 20, 32, 44 and 56 for images of 32 x 32 (He et al., 2016, section 4.2).

One difference from the paper: where the width doubles, the shortcut is a 1 x 1 convolution with normalisation (the
paper's option B) instead of zero padding (option A). This adds 2,752 weights to the 269,722 of ResNet-20.
"""

from __future__ import annotations

from functools import partial

from mindspore import Tensor, nn

from models.resnet import conv


class BasicBlock(nn.Cell):
    """Two 3 x 3 convolutions and a shortcut: relu(x + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm_momentum: float = 0.9) -> None:
        super().__init__()
        norm = partial(nn.BatchNorm2d, out_channels, momentum=norm_momentum)
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.norm1 = norm()
        self.conv2 = conv(out_channels, out_channels, 3, 1)
        self.norm2 = norm()
        self.relu = nn.ReLU()
        self.shortcut: nn.Cell = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.SequentialCell(conv(in_channels, out_channels, 1, stride), norm())

    def construct(self, x: Tensor) -> Tensor:
        """The block's output, at 1 / stride of the input's size."""
        out = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNetCifar(nn.Cell):
    """Images [B, C, 32, 32] to logits [B, classes]; 6 n + 2 layers for n blocks per stage.

    ``width`` is the width of the first stage; the paper has 16. ``norm_momentum`` is the decay of the normalisations'
    running averages: 0.9 averages over about ten batches, which can be too slow for a training of a hundred.
    """

    def __init__(
        self, blocks_per_stage: int, num_classes: int = 10, in_channels: int = 3, width: int = 16,
        norm_momentum: float = 0.9,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"width must be an int of at least 1, but got {width!r}")
        if isinstance(norm_momentum, bool) or not isinstance(norm_momentum, int | float) or not 0 <= norm_momentum < 1:
            raise ValueError(f"norm_momentum must be a number of at least 0 and less than 1, but got {norm_momentum!r}")
        self.conv1 = conv(in_channels, width, 3, 1)
        self.norm1 = nn.BatchNorm2d(width, momentum=norm_momentum)
        self.relu = nn.ReLU()
        self.stage1 = _stage(width, width, blocks_per_stage, 1, norm_momentum)
        self.stage2 = _stage(width, 2 * width, blocks_per_stage, 2, norm_momentum)
        self.stage3 = _stage(2 * width, 4 * width, blocks_per_stage, 2, norm_momentum)
        self.fc = nn.Dense(4 * width, num_classes)

    def construct(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(x.mean((2, 3)))


def resnet8(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, norm_momentum: float = 0.9
) -> ResNetCifar:  # fmt: skip
    """ResNet-8: one block per stage. It is not in the paper, and small enough to train on a CPU."""
    return ResNetCifar(1, num_classes, in_channels, width, norm_momentum)


def resnet20(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, norm_momentum: float = 0.9
) -> ResNetCifar:  # fmt: skip
    """ResNet-20: three blocks per stage."""
    return ResNetCifar(3, num_classes, in_channels, width, norm_momentum)


def resnet32(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, norm_momentum: float = 0.9
) -> ResNetCifar:  # fmt: skip
    """ResNet-32: five blocks per stage."""
    return ResNetCifar(5, num_classes, in_channels, width, norm_momentum)


def resnet44(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, norm_momentum: float = 0.9
) -> ResNetCifar:  # fmt: skip
    """ResNet-44: seven blocks per stage."""
    return ResNetCifar(7, num_classes, in_channels, width, norm_momentum)


def resnet56(
    num_classes: int = 10, in_channels: int = 3, width: int = 16, norm_momentum: float = 0.9
) -> ResNetCifar:  # fmt: skip
    """ResNet-56: nine blocks per stage."""
    return ResNetCifar(9, num_classes, in_channels, width, norm_momentum)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int, norm_momentum: float) -> nn.SequentialCell:
    """Blocks of one width; the first one changes width and size."""
    first = BasicBlock(in_channels, out_channels, stride, norm_momentum)
    others = [BasicBlock(out_channels, out_channels, 1, norm_momentum) for _ in range(blocks - 1)]
    return nn.SequentialCell([first, *others])
