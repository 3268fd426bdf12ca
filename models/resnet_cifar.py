"""ResNet-8, 20, 32, 44 and 56 for images of 32 x 32 (He et al., 2016, section 4.2).

One difference to the paper: where the width doubles, the shortcut is a 1 x 1 convolution with normalisation
(their option B) and not zero padding (option A). That adds 2,752 weights to ResNet-20's 269,722.
"""

from __future__ import annotations

from mindspore import Tensor, nn

from models.resnet import conv


class BasicBlock(nn.Cell):
    """Two 3 x 3 convolutions and a shortcut: relu(x + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3, 1)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.shortcut: nn.Cell = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.SequentialCell(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def construct(self, x: Tensor) -> Tensor:
        """The block's output, at 1 / stride of the input's size."""
        out = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNetCifar(nn.Cell):
    """Images [B, C, 32, 32] to logits [B, classes]; 6 n + 2 layers for n blocks a stage.

    ``width`` is that of the first stage; the paper's is 16.
    """

    def __init__(self, blocks_per_stage: int, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"width must be an int of at least 1, but got {width!r}")
        self.conv1 = conv(in_channels, width, 3, 1)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.stage1 = _stage(width, width, blocks_per_stage, stride=1)
        self.stage2 = _stage(width, 2 * width, blocks_per_stage, stride=2)
        self.stage3 = _stage(2 * width, 4 * width, blocks_per_stage, stride=2)
        self.fc = nn.Dense(4 * width, num_classes)

    def construct(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(x.mean((2, 3)))


def resnet8(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNetCifar:
    """ResNet-8: one block a stage. Not in the paper; what a processor without accelerator trains in minutes."""
    return ResNetCifar(1, num_classes, in_channels, width)


def resnet20(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNetCifar:
    """ResNet-20: three blocks a stage."""
    return ResNetCifar(3, num_classes, in_channels, width)


def resnet32(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNetCifar:
    """ResNet-32: five blocks a stage."""
    return ResNetCifar(5, num_classes, in_channels, width)


def resnet44(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNetCifar:
    """ResNet-44: seven blocks a stage."""
    return ResNetCifar(7, num_classes, in_channels, width)


def resnet56(num_classes: int = 10, in_channels: int = 3, width: int = 16) -> ResNetCifar:
    """ResNet-56: nine blocks a stage."""
    return ResNetCifar(9, num_classes, in_channels, width)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.SequentialCell:
    """Blocks of one width; the first one changes width and size."""
    first = BasicBlock(in_channels, out_channels, stride)
    return nn.SequentialCell([first] + [BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)])
