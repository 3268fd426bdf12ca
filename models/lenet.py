"""LeNet-5 (LeCun et al., 1998) in its usual modern form: ReLU and max pooling."""

from __future__ import annotations

from mindspore import Tensor, nn


class LeNet5(nn.Cell):
    """Images [B, C, 28, 28] or [B, C, 32, 32] to logits [B, classes].

    conv 5x5 6 - pool 2 - conv 5x5 16 - pool 2 - dense 120 - dense 84 - dense classes. The first convolution pads an
    image of 28 x 28 by two on each side, so that the dense layers are the same for both sizes.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> None:
        super().__init__()
        if image_size not in (28, 32):
            raise ValueError(f"image_size must be 28 or 32, and is {image_size}")
        padding = (32 - image_size) // 2
        self.conv1 = nn.Conv2d(in_channels, 6, 5, pad_mode="pad", padding=padding, has_bias=True)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, num_classes)

    def construct(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.pool(self.relu(self.conv1(x)))
        x = self.flatten(self.pool(self.relu(self.conv2(x))))
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


def lenet5(num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> LeNet5:
    """LeNet-5 for images of 28 x 28 or 32 x 32."""
    return LeNet5(num_classes, in_channels, image_size)
