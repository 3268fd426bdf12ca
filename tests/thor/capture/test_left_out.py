"""Layers of MindSpore that are left out for what they are or for an option of theirs, with the reason that is shown."""

import numpy as np
import pytest
from mindspore import Tensor, mint, nn

import thor
from tests.support.networks import make

CHANGED_ROWS = "max_norm or scale_grad_by_freq change its rows or their gradients"
LEFT_OUT = {
    "padding": (lambda: mint.nn.Conv2d(1, 2, 3, padding_mode="reflect"), "padding_mode reflect"),
    "norm of rows": (lambda: mint.nn.Embedding(5, 4, max_norm=1.0), CHANGED_ROWS),
    "frequency": (lambda: mint.nn.Embedding(5, 4, scale_grad_by_freq=True), CHANGED_ROWS),
    "LSTM": (lambda: nn.LSTM(4, 4), "this type has no factors here"),
    "GRU": (lambda: nn.GRU(4, 4), "this type has no factors here"),
}


@pytest.mark.parametrize(("layer", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_such_a_layer_is_left_out_and_says_why(layer, reason):
    optimizer = thor.THOR(nn.SequentialCell(layer(), nn.Dense(4, 3)), 0.1)
    assert [each.name for each in optimizer.layers] == ["1"]
    assert {each.reason for each in optimizer.left_out} == {reason}


class Translation(nn.Cell):
    """A whole nn.Transformer, whose decoder looks at what its encoder has made."""

    def __init__(self):
        super().__init__()
        self.both = nn.Transformer(
            d_model=4, nhead=2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=6, dropout=0.0,
            batch_first=True,
        )  # fmt: skip

    def construct(self, x, y):
        return (self.both(x, y) ** 2).mean()


def test_every_projection_of_a_transformer_is_captured():
    """Those of its three attentions, where the cross attention takes queries and keys from two places."""
    net = Translation()
    optimizer, step = make(net, loss_fn=None)
    rng = np.random.default_rng(0)
    step(*(Tensor(rng.standard_normal((3, length, 4)).astype(np.float32)) for length in (5, 2)))
    captured = {layer.name.removeprefix("both.") for layer in optimizer.layers if layer.refreshes}
    stack = {"encoder.layers.0": ["self_attn"], "decoder.layers.0": ["self_attn", "multihead_attn"]}
    for layer, attentions in stack.items():
        assert {f"{layer}.dense1", f"{layer}.dense2"} <= captured
        for attention in attentions:
            of_one = {name for name in captured if name.startswith(f"{layer}.{attention}.")}
            assert any("in_proj" in name for name in of_one) and any("out_proj" in name for name in of_one)
    assert all("norm" in each.name for each in optimizer.left_out)
