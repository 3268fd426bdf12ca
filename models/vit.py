"""A small vision transformer (Dosovitskiy et al., 2021): patches of an image as tokens, with a class token.

All layers with weights are nn.Conv2d (the patches), nn.Dense or nn.LayerNorm; class token and positions are Parameters.

Shapes: B images of C channels and S x S pixels, T = (S / P)^2 + 1 tokens for patches of P x P pixels, H width.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from models.bert import BertConfig, BertSelfAttention
from models.small_normal import SMALL_NORMAL, small_dense

_EPSILON = 1e-6


class ViTLayer(nn.Cell):
    """Attention, then the feed-forward part; each normalises its input and adds its output to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=_EPSILON)
        self.attention = BertSelfAttention(BertConfig(hidden_size=width, heads=heads, dropout=0.0))
        self.projection = small_dense(width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=_EPSILON)
        self.widening = small_dense(width, 4 * width)
        self.gelu = nn.GELU(approximate=False)
        self.narrowing = small_dense(4 * width, width)

    def construct(self, x: Tensor) -> Tensor:
        """[B, T, H] to [B, T, H]."""
        x = x + self.projection(self.attention(self.norm1(x)))
        return x + self.narrowing(self.gelu(self.widening(self.norm2(x))))


class VisionTransformer(nn.Cell):
    """Images [B, C, S, S] to scores of classes; the last state of the class token is classified."""

    def __init__(
        self, image_size: int, in_channels: int, patch_size: int, width: int, layers: int, heads: int, num_classes: int
    ) -> None:  # fmt: skip
        super().__init__()
        tokens = (image_size // patch_size) ** 2 + 1
        self.patches = nn.Conv2d(
            in_channels, width, patch_size, patch_size, pad_mode="valid", has_bias=True, weight_init=SMALL_NORMAL,
            bias_init="zeros",
        )  # fmt: skip
        self.class_token = Parameter(initializer(SMALL_NORMAL, (1, 1, width), ms.float32), name="class_token")
        self.positions = Parameter(initializer(SMALL_NORMAL, (1, tokens, width), ms.float32), name="positions")
        self.layers = nn.CellList([ViTLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm((width,), epsilon=_EPSILON)
        self.head = small_dense(width, num_classes)

    def construct(self, images: Tensor) -> Tensor:
        """[B, C, S, S] to [B, classes]."""
        x = self.patches(images)
        x = x.reshape(x.shape[0], x.shape[1], -1).swapaxes(1, 2)
        first = ops.broadcast_to(self.class_token.astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        x = ops.cat((first, x), 1) + self.positions.astype(x.dtype)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def vit(
    num_classes: int = 10,
    in_channels: int = 1,
    image_size: int = 28,
    patch_size: int = 7,
    width: int = 80,
    layers: int = 4,
    heads: int = 4,
) -> VisionTransformer:
    """4 layers of width 80 on 16 patches of a 28 x 28 image, by default."""
    numbers = {
        "num_classes": num_classes, "in_channels": in_channels, "image_size": image_size, "patch_size": patch_size,
        "width": width, "layers": layers, "heads": heads,
    }  # fmt: skip
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an int of at least 1, but got {value!r}")
    if image_size % patch_size:
        raise ValueError(f"image_size must be a multiple of patch_size={patch_size}, but got {image_size}")
    if width % heads:
        raise ValueError(f"width must be a multiple of heads={heads}, but got {width}")
    return VisionTransformer(image_size, in_channels, patch_size, width, layers, heads, num_classes)
