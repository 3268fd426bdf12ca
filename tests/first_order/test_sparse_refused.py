"""Sparse gradients inside a graph: what takes none says so while the graph is compiled."""

import mindspore as ms
import pytest
from mindspore import Tensor, nn

from first_order import SOAP, Adafactor, Momentum, Muon


class Lookup(nn.Cell):
    """A layer whose gradient is a RowTensor, which exists only in graphs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingLookup(6, 3, sparse=True)

    def construct(self, rows):
        return self.embedding(rows).sum()


@pytest.mark.parametrize("kind", [Momentum, Adafactor, Muon, SOAP])
def test_rows_are_refused(kind):
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Lookup()
    step = nn.TrainOneStepCell(net, kind(net.trainable_params(), 0.1)).set_train()
    with pytest.raises(TypeError, match="a gradient must be a Tensor, but got sparse rows: use nn.Embedding in place"):
        step(Tensor([1, 2, 1]))
