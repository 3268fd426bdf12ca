"""Parameters of users are moved whatever their storage is."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import thor
from first_order import Adam
from tests.support.networks import Mlp, batch, squared_error, values
from thor.runtime.modes import in_mode


def with_a_view(net):
    """The network with a bias that is a view of a larger Tensor, as an initializer's reshaped result is."""
    bias = net.layers[0].bias
    bias.set_data(Tensor(bias.asnumpy().reshape(1, -1)).reshape((-1,)))
    return net


OPTIMIZERS = {
    "eigenbases": lambda net: thor.THOR(net, 1e-2),
    "inverses": lambda net: thor.THOR(net, 0.05, 0.1),
    "decoupled": lambda net: thor.THOR(net, 0.05, 0.1, weight_decay=0.01, weight_decay_mode="decoupled"),
    "Adam": lambda net: Adam(net.trainable_params(), 1e-2),
}


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_operator_by_operator_a_weight_that_is_a_view_moves_as_any_other(make, mode):
    found = []
    with in_mode(mode):
        for net in (Mlp(), with_a_view(Mlp())):
            step = thor.TrainStep(net, squared_error, make(net), jit=False)
            for seed in range(2):
                step(*batch(seed=seed))
            found.append(values(net))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)
