"""Losses that hold derivatives, and a step that gathers their factors."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn

import thor
from thor.runtime.modes import in_mode

CLOSE = {"rtol": 3e-4, "atol": 1e-6}


class Penalty(nn.Cell):
    """A penalty on a critic and on its gradient by the input, as generative networks have it.

    Value and gradient come from one call: two calls with one input are merged by the compiler, but not operator by
    operator.
    """

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.both = ms.value_and_grad(net)

    def construct(self, x):
        value, slopes = self.both(x)
        return (value**2).mean() + (slopes**2).mean()


def gathered(net, kind, batch, jit=True, **options):
    """(loss, gradients, optimizer) of one step that gathers and refreshes."""
    whole = kind(net)
    settings = {"momentum": 0.0, "interval": 1, "factor_decay": 0.0, "split": "block", "norms": True} | options
    optimizer = thor.THOR(whole, 0.05, 0.1, **settings)

    def forward(*batch):
        return whole(*batch)

    loss, found = thor.value_and_grad(forward, optimizer, jit=jit)(*batch)
    optimizer(found)
    return float(loss), [g.asnumpy() for g in found], optimizer


def plain_gradients(net, kind, batch):
    """Those of the network without taps, compiled."""
    whole = kind(net).set_train()

    class Gradients(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.whole = whole
            self.gradients = ms.grad(whole, None, net.trainable_params())

        def construct(self, *batch):
            return self.gradients(*batch)

    with in_mode(ms.GRAPH_MODE):
        return [g.asnumpy() for g in Gradients()(*batch)]
