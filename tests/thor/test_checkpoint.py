"""A run that is saved, thrown away and taken up again goes on bit for bit."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import thor
from tests.support.networks import Mixed, Mlp, assert_equal, batch, images, make, squared_error, values
from thor import TraceRule

SETTINGS = {"momentum": 0.9, "interval": 4, "factor_interval": 2, "factor_decay": 0.9, "block_size": 3}


def run(step, first, last, make_batch):
    return [step(*make_batch(seed=seed)).asnumpy().tobytes() for seed in range(first, last)]


def save_and_load(source, target, path, form):
    for kind, (one, other) in enumerate(zip(source, target, strict=True)):
        name = str(path / f"part{kind}")
        ms.save_checkpoint(one, name, format=form)
        ms.load_param_into_net(other, ms.load_checkpoint(f"{name}.{form}", format=form))


def check(make_pair, path, *, at, more, form="ckpt", make_batch=batch):
    """Save after ``at`` steps; a fresh pair with other weights continues as the first one does. Returns the first."""
    net, optimizer, step = make_pair(0)
    run(step, 0, at, make_batch)
    fresh_net, fresh, fresh_step = make_pair(1)
    save_and_load((net, optimizer), (fresh_net, fresh), path, form)
    assert run(step, at, at + more, make_batch) == run(fresh_step, at, at + more, make_batch)
    assert_equal(net, fresh_net)
    assert_equal(optimizer, fresh)
    assert [r.status for r in optimizer.layers] == [r.status for r in fresh.layers]
    return optimizer


def pair(net_type=Mlp, **options):
    def build(seed):
        net = net_type(seed=seed)
        optimizer, step = make(net, **(SETTINGS | options))
        return net, optimizer, step

    return build


@pytest.mark.parametrize(("split", "form"), [("block", "ckpt"), ("block+mean", "safetensors"), ("block+rank", "ckpt")])
def test_in_the_middle_of_an_interval(split, form, tmp_path):
    optimizer = check(pair(split=split, rank=2), tmp_path, at=6, more=5, form=form)
    assert {r.step for r in optimizer.history} == {0, 4, 8}


@pytest.mark.parametrize(("mode", "form"), [("GRAPH_MODE", "safetensors"), ("PYNATIVE_MODE", "ckpt")])
def test_compiled_with_convolutions_and_batch_statistics(mode, form, tmp_path):
    ms.set_context(mode=getattr(ms, mode))
    optimizer = check(pair(Mixed, jit=True), tmp_path, at=3, more=5, form=form, make_batch=images)
    assert [r.refreshes for r in optimizer.layers] == [2, 2, 2]


class Script(TraceRule):
    """Decides as it is told, then always updates."""

    def follow(self, decisions):
        object.__setattr__(self, "decisions", iter(decisions))

    def decide(self, adopted, fresh):
        return next(self.decisions, thor.Decision.UPDATE), None


@pytest.mark.parametrize("jit", [False, True])
def test_after_a_stop(jit, tmp_path):
    """The first run has left the stopped layer out of its curvature step; the fresh one finds it stopped."""
    update, stop = thor.Decision.UPDATE, thor.Decision.STOP

    def build(seed):
        net = Mlp((5, 6, 3), seed=seed)
        optimizer, step = make(
            net, **(SETTINGS | {"refresh": Script(), "interval": 2, "factor_interval": 1, "jit": jit})
        )
        optimizer.options.refresh.follow([update, update, stop, update] if seed == 0 else [])
        return net, optimizer, step

    optimizer = check(build, tmp_path, at=5, more=6)
    assert [(r.status, r.refreshes) for r in optimizer.layers] == [("stopped", 1), ("active", 6)]


def test_after_every_layer_has_stopped(tmp_path):
    rule = TraceRule(update=1e6, stop=1e6)
    optimizer = check(pair(refresh=rule, interval=1), tmp_path, at=3, more=5)
    assert [r.status for r in optimizer.layers] == ["stopped"] * 2


def test_with_schedules_and_a_growing_interval(tmp_path):
    options = {
        "lr": thor.PolynomialRate(0.1, 2.0, 10, 3),
        "damping": thor.ExponentialDamping(0.1, 0.5, 3),
        "interval": thor.GrowingInterval(1, 5),
    }
    check(pair(**options), tmp_path, at=4, more=6)


@pytest.mark.parametrize(
    "inner", [lambda p: nn.Adam(p, nn.ExponentialDecayLR(0.1, 0.9, 2)), lambda p: nn.SGD(p, 0.01, momentum=0.9)]
)
def test_with_another_inner_optimizer(inner, tmp_path):
    def build(seed):
        net = Mlp(seed=seed)
        beside = {"lr": None, "momentum": 0.9, "inner": inner(net.trainable_params())}
        optimizer, step = make(net, **(SETTINGS | beside))
        return net, optimizer, step

    check(build, tmp_path, at=3, more=5)


def test_with_a_dynamic_loss_scale_in_its_window(tmp_path):
    scale = thor.DynamicLossScale(initial=4.0, window=3)
    optimizer = check(pair(loss_scale=scale), tmp_path, at=4, more=5)
    assert float(optimizer.scale.asnumpy()[0]) == 4 * 2**3


def test_in_the_middle_of_an_accumulated_step(tmp_path):
    """The accumulators belong to the TrainStep: saved with it, even a half-done step goes on."""
    settings = SETTINGS | {"accumulate": 3}
    _, step = make(Mlp(seed=0), **settings)
    run(step, 0, 8, batch)  # two steps and two thirds
    _, fresh = make(Mlp(seed=1), **settings)
    save_and_load((step,), (fresh,), tmp_path, "ckpt")
    assert run(step, 8, 17, batch) == run(fresh, 8, 17, batch)
    assert_equal(step, fresh)


def test_a_half_done_step_loaded_into_a_running_step_goes_on(tmp_path):
    """Its sums too are read by graphs that were compiled before."""
    settings = SETTINGS | {"accumulate": 3, "jit": True}
    _, step = make(Mlp(seed=0), **settings)
    run(step, 0, 8, batch)
    ms.save_checkpoint(step, str(tmp_path / "step.ckpt"))
    wanted = run(step, 8, 17, batch)
    ms.load_param_into_net(step, ms.load_checkpoint(str(tmp_path / "step.ckpt")))
    assert run(step, 8, 17, batch) == wanted


def test_a_checkpoint_of_other_shapes_changes_nothing():
    """Where ranks share the layers, each has one number in place of what another rank holds."""
    net = Mlp()
    optimizer, step = make(net, **SETTINGS)
    run(step, 0, 3, batch)
    state = {entry["name"]: Parameter(entry["data"]) for entry in optimizer.state()}
    name = next(name for name in state if name.endswith(".inverse"))
    state[name] = Parameter(Tensor(np.zeros(1, np.float32)))
    before = values(optimizer)
    state["thor.step"] = Parameter(Tensor([77], ms.int32))
    with pytest.raises(ValueError, match=rf"{name} of the shape \(1,\), but it must be .*save optimizer.state"):
        optimizer.load(state)
    assert all(np.array_equal(value, before[name]) for name, value in values(optimizer).items())


@pytest.mark.parametrize("jit", [True, False])
def test_a_checkpoint_loaded_into_a_running_step_takes_effect(jit, tmp_path):
    """Compiled graphs go on reading the storage they were compiled with, nn.Momentum's too: loading must reach it."""
    net, optimizer, step = pair(jit=jit)(0)
    run(step, 0, 3, batch)
    for kind, cell in enumerate((net, optimizer)):
        ms.save_checkpoint(cell, str(tmp_path / f"{kind}.ckpt"))
    first = run(step, 3, 9, batch)
    wanted = values(net) | values(optimizer)
    for kind, cell in enumerate((net, optimizer)):
        ms.load_param_into_net(cell, ms.load_checkpoint(str(tmp_path / f"{kind}.ckpt")))
    assert run(step, 3, 9, batch) == first
    assert all(np.array_equal(v, wanted[n]) for n, v in (values(net) | values(optimizer)).items())


@pytest.mark.parametrize("kind", [{"precondition": "eigenbasis"}, {"precondition": "inverse", "damping": 0.1}])
@pytest.mark.parametrize("jit", [True, False])
def test_a_state_kept_in_memory_is_loaded_as_often_as_one_likes(kind, jit):
    """Neither going on nor a first load changes it, and a running step goes on from all of it."""
    net = Mlp(seed=0)
    optimizer = thor.THOR(net, 0.05, interval=4, factor_interval=2, block_size=3, **kind)
    step = thor.TrainStep(net, squared_error, optimizer, jit=jit)
    run(step, 0, 3, batch)
    kept = {each["name"]: ms.Parameter(each["data"], name=each["name"]) for each in optimizer.state()}
    weights = values(net)
    losses = []
    for _ in range(3):
        optimizer.load(kept)
        for weight in net.trainable_params():
            ms.ops.assign(weight, ms.Tensor(weights[weight.name]))
        losses.append(run(step, 3, 9, batch))
    assert losses[0] == losses[1] == losses[2]


def test_loading_into_a_running_step_brings_back_layers_that_have_left_the_curvature_step(tmp_path):
    """A layer is stopped by hand and leaves; the checkpoint is from before."""
    _, optimizer, step = pair(refresh=TraceRule.thor_nt(), interval=2)(0)
    run(step, 0, 1, batch)
    path = str(tmp_path / "optimizer.ckpt")
    ms.save_checkpoint(optimizer, path)
    ms.ops.assign(optimizer.own_state.status, ms.Tensor([1, 0], ms.int32))
    run(step, 1, 5, batch)
    assert step.step_graphs.in_graph == [1] and [layer.refreshes for layer in optimizer.layers] == [1, 3]
    ms.load_param_into_net(optimizer, ms.load_checkpoint(path))
    run(step, 1, 5, batch)
    assert step.step_graphs.in_graph == [0, 1] and [layer.refreshes for layer in optimizer.layers] == [3, 3]


def test_loading_into_a_running_step_drops_a_half_accumulated_one(tmp_path):
    """The sums are of micro-batches after the checkpoint: the loaded state goes on as it would in a new process."""
    settings = SETTINGS | {"accumulate": 3}
    net, fresh_net = Mlp(seed=0), Mlp(seed=1)
    optimizer, step = make(net, **settings)
    run(step, 0, 6, batch)
    paths = [str(tmp_path / f"{kind}.ckpt") for kind in range(2)]
    for cell, path in zip((net, optimizer), paths, strict=True):
        ms.save_checkpoint(cell, path)
    run(step, 6, 8, batch)
    fresh, fresh_step = make(fresh_net, **settings)
    for cells in ((net, optimizer), (fresh_net, fresh)):
        for cell, path in zip(cells, paths, strict=True):
            ms.load_param_into_net(cell, ms.load_checkpoint(path))
    assert run(step, 10, 16, batch) == run(fresh_step, 10, 16, batch)
    assert_equal(optimizer, fresh)


@pytest.mark.parametrize("jit", [False, True])
def test_curvature_alone_loaded_into_a_running_step_takes_effect(jit, tmp_path):
    """Without the momenta, whose new storage would tell too: graphs must not go on with the old inverses."""
    net, optimizer, step = pair(jit=jit)(0)
    run(step, 0, 6, batch)
    ms.save_checkpoint(optimizer, str(tmp_path / "o.ckpt"))
    saved = {n: p for n, p in ms.load_checkpoint(str(tmp_path / "o.ckpt")).items() if n.startswith("thor.")}
    other_net, other, other_step = pair(jit=jit)(1)
    run(other_step, 3, 6, batch)
    weights, moments = values(net), {p.name: p for p in optimizer.inner.get_parameters()}
    ms.load_param_into_net(other, saved)
    for target in (*other_net.get_parameters(), *other.inner.get_parameters()):  # in place: as if they were equal
        value = weights[target.name] if target.name in weights else moments[target.name].asnumpy()
        ms.ops.assign(target, ms.Tensor(value))
    assert run(step, 6, 12, batch) == run(other_step, 6, 12, batch)
    assert_equal(net, other_net)
    assert_equal(optimizer, other)


def test_a_loss_scale_that_is_loaded_before_the_first_step_is_applied(tmp_path):
    net, optimizer, step = pair(loss_scale=1024.0)(0)
    run(step, 0, 1, batch)
    ms.save_checkpoint(optimizer, str(tmp_path / "o.ckpt"))
    _, fresh, fresh_step = pair()(0)
    ms.load_param_into_net(fresh, ms.load_checkpoint(str(tmp_path / "o.ckpt")))
    assert fresh.scaled and fresh_step._scale() is None
    run(fresh_step, 1, 2, batch)
    assert fresh_step._scale().asnumpy() == 1024.0
