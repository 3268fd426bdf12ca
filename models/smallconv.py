"""The quickstart's small convolutional network: two convolutions and two dense layers, 103,018 weights."""

from __future__ import annotations

from mindspore import Tensor, nn


class SmallConv(nn.Cell):
    """Images [B, C, 28, 28] to logits [B, classes].

    conv 3x3 8 - ReLU - pool 2 - conv 3x3 16 - ReLU - pool 2 - dense 128 - ReLU - dense classes
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 8, 3, pad_mode="same", has_bias=True)
        self.conv2 = nn.Conv2d(8, 16, 3, pad_mode="same", has_bias=True)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(16 * 7 * 7, 128)
        self.fc2 = nn.Dense(128, num_classes)

    def construct(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        return self.fc2(self.relu(self.fc1(self.flatten(x))))


def smallconv(num_classes: int = 10, in_channels: int = 1) -> SmallConv:
    """A small network for 28 x 28 images."""
    return SmallConv(num_classes, in_channels)
