"""Layers of one form preconditioned together move as they do one by one, whatever else is asked for."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support.networks import Mlp, batch, fill, images, make, squared_error, values
from thor.curvature import dense_caches
from thor.curvature.form_groups import form_groups
from thor.runtime import device


class Twins(nn.Cell):
    """Pairs of every kind of layer: grouped convolutions with bias, transposed, depthwise, dense, LayerNorm."""

    def __init__(self, seed=0):
        super().__init__()
        self.conv = nn.CellList([nn.Conv2d(2, 2, 3, group=2, has_bias=True) for _ in range(2)])
        self.up = nn.CellList([nn.Conv2dTranspose(2, 2, 2) for _ in range(2)])
        self.deep = nn.CellList([nn.Conv2d(2, 2, 3, group=2) for _ in range(2)])
        self.dense = nn.CellList([nn.Dense(9, 9) for _ in range(3)])
        self.norm = nn.CellList([nn.LayerNorm([9]) for _ in range(2)])
        self.tanh, self.flatten, self.squeeze, self.last = nn.Tanh(), nn.Flatten(), nn.Dense(32, 9), nn.Dense(9, 3)
        fill(self, seed)

    def construct(self, x):
        for k in range(2):
            x = self.tanh(self.deep[k](self.up[k](self.tanh(self.conv[k](x)))))
        x = self.squeeze(self.flatten(x))
        for k in range(2):
            x = self.tanh(self.dense[k](self.norm[k](x)))
        return self.last(self.tanh(self.dense[2](x)))


def trained(together, monkeypatch, steps=4, save=None, load=None, net=None, data=images, **options):
    """Weights, losses, optimizer of a short training in groups, or one by one."""
    monkeypatch.setattr(device, "stacks", lambda numbers: together)
    net = net or Twins()
    settings = {"lr": 0.02, "interval": 2, "momentum": 0.9, "norms": True, "jit": True, "factor_decay": 0.5}
    optimizer, step = make(net, **settings | options)
    if load is not None:
        ms.load_param_into_net(step, ms.load_checkpoint(str(load)))
    losses = [float(step(*data(count=5, seed=k)).asnumpy()) for k in range(optimizer.step, steps)]
    if save is not None:
        ms.save_checkpoint(step, str(save))
    return values(net), losses, optimizer


CASES = {
    "dense inverses, clip": {"block_size": 4, "clip": 0.01},
    "blocks, clip each weight": {"block_size": 4, "clip_each": 0.5, "dense": 0},
    "low rank, decoupled decay": {
        "block_size": 5, "split": "block+rank", "rank": 2, "weight_decay": 0.1, "weight_decay_mode": "decoupled",
    },
    "by position, graft, operator by operator": {
        "block_size": thor.BlockPlan(block_size=4, order="position", split="block"), "graft": True, "jit": False,
    },
    "graft": {"graft": True, "block_size": 4},
    "dense eigenbasis": {"damping": None, "momentum": 0.9, "lr": 1e-3, "block_size": 4},
    "eigenbasis, operator by operator": {"damping": None, "momentum": 0.9, "lr": 1e-3, "dense": 0, "jit": False},
}  # fmt: skip


QUICK = ("dense inverses, clip", "dense eigenbasis")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_groups_move_as_layers_one_by_one(name, monkeypatch):
    options = dict(CASES[name])
    operations = options.pop("dense", 10**9)
    monkeypatch.setattr(device, "operations_of_launches", lambda: operations)
    alone, losses, _ = trained(False, monkeypatch, **options)
    together, grouped_losses, _ = trained(True, monkeypatch, **options)
    np.testing.assert_allclose(grouped_losses, losses, rtol=1e-4)
    start = values(Twins())
    for key, value in alone.items():  # float32 sums of other lengths through four steps, against the way moved
        tolerance = 2e-3 * max(np.abs(value - start[key]).max(), 1e-6)
        np.testing.assert_allclose(together[key], value, rtol=0, atol=tolerance, err_msg=key)


def test_a_checkpoint_does_not_depend_on_the_groups(monkeypatch, tmp_path):
    """A run saved one by one goes on in groups, and the other way round; both end as the run that was not cut."""

    def run(together, **more):
        return trained(together, monkeypatch, net=Mlp((5, 5, 5, 3)), data=batch, block_size=3, norms=False, **more)[0]

    whole = run(False)
    for first in (False, True):
        path = tmp_path / f"{first}.ckpt"
        run(first, steps=2, save=path)
        assert not [name for name in ms.load_checkpoint(str(path)) if "form" in name]
        resumed = run(not first, load=path)
        for key, value in whole.items():
            np.testing.assert_allclose(resumed[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("split", ["block+mean", "block+rank"])
def test_a_dense_inverse_is_the_one_in_parts(split):
    """float32 products of inverses of size 10, in another order."""
    net = Mlp((23, 9, 3))
    optimizer, step = make(net, block_size=4, split=split, rank=2, damping=0.1)
    step(*batch(inputs=23))
    for layer in optimizer.captured:
        for factor in (layer.a, layer.g):
            if factor.cut.rank and not factor.cut.whole_inverse:
                found = dense_caches.dense_inverse(factor).asnumpy()[:, 0]
                np.testing.assert_allclose(found, factor.dense_inverse(), rtol=1e-4, atol=1e-4)
    parts = [f for layer in optimizer.captured for f in (layer.a, layer.g) if f.cut.rank and not f.cut.whole_inverse]
    assert parts, "the test has nothing to compare"


def test_groups_are_of_one_form_and_have_a_cache_for_all():
    optimizer, _ = make(Twins(), norms=True, block_size=4)
    groups = form_groups(optimizer.captured, lambda numbers: True)
    assert sorted(i for group in groups for i in group.indices) == list(range(len(optimizer.captured)))
    assert sorted(len(group.indices) for group in groups) == [1, 1, 2, 2, 2, 3, 4]
    for group in groups:
        assert len({layer.form for layer in group.layers}) == 1
        _, caches_of = group.layers[0].in_group(len(group.layers))
        for at, cache in enumerate(group.caches):
            own = np.concatenate([caches_of(layer)[at].asnumpy() for layer in group.layers])
            np.testing.assert_array_equal(cache.asnumpy(), own)
    assert all(len(group.indices) == 1 for group in form_groups(optimizer.captured, lambda numbers: False))


def test_a_group_follows_its_layers():
    optimizer, _ = make(Twins(), block_size=4)
    group = next(g for g in form_groups(optimizer.captured, lambda numbers: True) if len(g.indices) == 3)
    inverse = group.layers[1].caches[0]
    inverse.set_data(Tensor(inverse.asnumpy() * 2))
    group.renew()
    assert not np.array_equal(group.caches[0].asnumpy()[1], inverse.asnumpy()[0]), "nothing was adopted"
    group.renew(loaded=True)
    np.testing.assert_array_equal(group.caches[0].asnumpy()[1], inverse.asnumpy()[0])
    group.layers[2].adopt(())
    group.layers[2].caches[0].set_data(inverse)
    group.renew()
    np.testing.assert_array_equal(group.caches[0].asnumpy()[2], inverse.asnumpy()[0])


def test_a_loss_and_its_network_are_not_changed_by_grouping(monkeypatch):
    """The group's copies are no Parameters of the step: nothing more is saved, counted or optimized."""
    names = []
    for together in (False, True):
        monkeypatch.setattr(device, "stacks", lambda numbers, together=together: together)
        optimizer = thor.THOR(Twins(), 1e-3)
        step = thor.TrainStep(optimizer.network, squared_error, optimizer)
        names.append([p.name for p in step.get_parameters()])
    assert names[0] == names[1]
