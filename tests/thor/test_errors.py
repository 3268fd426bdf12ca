"""What cannot work is refused, with the name, the value and what is allowed."""

from functools import partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import first_order
import thor
from tests.support.networks import Mixed, Mlp, batch, make, squared_error, values
from thor import THOR, BlockPlan, TraceRule, TrainStep

OPTIONS = [
    ({"learning_rate": -0.1}, ValueError, ("learning_rate", "-0.1", "at least 0")),
    ({"learning_rate": float("nan")}, ValueError, ("learning_rate", "nan", "finite")),
    ({"learning_rate": "fast"}, TypeError, ("learning_rate", "'fast'", "number")),
    ({"learning_rate": True}, TypeError, ("learning_rate", "True", "number")),
    ({"learning_rate": None}, ValueError, ("learning_rate", "None", "number")),
    ({"damping": 0}, ValueError, ("damping", "0", "greater than 0")),
    ({"damping": -1.0}, ValueError, ("damping", "-1.0", "greater than 0")),
    ({"damping": float("inf")}, ValueError, ("damping", "inf", "finite")),
    ({"damping": "small"}, TypeError, ("damping", "'small'", "number")),
    ({"momentum": 1.0}, ValueError, ("momentum", "1.0", "less than 1")),
    ({"momentum": -0.1}, ValueError, ("momentum", "-0.1", "at least 0")),
    ({"momentum": "0.9"}, TypeError, ("momentum", "'0.9'", "number")),
    ({"weight_decay": -1e-4}, ValueError, ("weight_decay", "-0.0001", "at least 0")),
    ({"weight_decay_mode": "l2"}, ValueError, ("weight_decay_mode", "'l2'", "coupled, decoupled")),
    ({"interval": 0}, ValueError, ("interval", "0", "at least 1")),
    ({"interval": 2.5}, TypeError, ("interval", "2.5", "int")),
    ({"interval": True}, TypeError, ("interval", "True", "int")),
    ({"factor_interval": 0}, ValueError, ("factor_interval", "0", "at least 1")),
    ({"block_size": 0}, ValueError, ("block_size", "0", "at least 1")),
    ({"block_size": 12.5}, TypeError, ("block_size", "12.5", "int", "BlockPlan")),
    ({"split": "rows"}, ValueError, ("split", "'rows'", "block+rank")),
    ({"rank": 0}, ValueError, ("rank", "0", "at least 1")),
    ({"block_size": BlockPlan(), "split": "block"}, ValueError, ("split='block'", "'block+mean'", "BlockPlan(split=")),
    ({"block_size": BlockPlan(), "rank": 8}, ValueError, ("rank=8", "16", "thor.BlockPlan(rank=8")),
    ({"refresh": 0.01}, TypeError, ("refresh", "0.01", "TraceRule")),
    ({"factor_decay": 1.0}, ValueError, ("factor_decay", "1.0", "less than 1")),
    ({"factor_decay": -0.1}, ValueError, ("factor_decay", "-0.1", "at least 0")),
    ({"factor_decay": "0.9"}, TypeError, ("factor_decay", "'0.9'", "number")),
    ({"factor_share": 0}, ValueError, ("factor_share", "0", "greater than 0", "at most 1")),
    ({"factor_share": 1.5}, ValueError, ("factor_share", "1.5", "at most 1")),
    ({"factor_share": "all"}, TypeError, ("factor_share", "'all'", "number")),
    ({"clip": 0.0}, ValueError, ("clip", "0", "greater than 0")),
    ({"clip": -1.0}, ValueError, ("clip", "-1.0", "at least 0")),
    ({"loss_scale": 0}, ValueError, ("loss_scale", "0", "greater than 0")),
    ({"loss_scale": 1e39}, ValueError, ("loss_scale", "1e+39", "at most 3.40282e+38")),
    ({"loss_scale": "dynamic"}, TypeError, ("loss_scale", "'dynamic'", "number")),
    ({"damping": None, "epsilon": 0.0}, ValueError, ("epsilon", "0", "greater than 0")),
    ({"skip": "head"}, TypeError, ("skip", "'head'", "sequence")),
    ({"skip": ["("]}, ValueError, ("skip", "'('", "regular expression")),
    ({"max_bad_steps": 0}, ValueError, ("max_bad_steps", "0", "at least 1")),
    ({"inverse": "qr"}, ValueError, ("inverse", "'qr'", "lapack, cholesky, newton-schulz")),
    ({"inner": "adam"}, TypeError, ("inner", "str", "nn.Optimizer")),
    ({"sharing": 0.5}, TypeError, ("sharing", "0.5", "thor.Sharing")),
]


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_a_wrong_option_is_refused_and_the_network_stays_as_it_was(options, error, words):
    net = Mlp()
    with pytest.raises(error) as caught:
        THOR(net, **({"learning_rate": 0.1, "damping": 0.1} | options))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert [type(cell) for cell in net.layers] == [nn.Dense] * 2


@pytest.mark.parametrize(
    ("thresholds", "error", "words"),
    [
        ({"update": 0.01, "stop": 0.02}, ValueError, ("stop=0.02", "update=0.01", "at most update")),
        ({"update": -0.1}, ValueError, ("update", "-0.1", "at least 0")),
        ({"stop": float("nan")}, ValueError, ("stop", "nan", "finite")),
        ({"stop": "0"}, TypeError, ("stop", "'0'", "number")),
    ],
)
def test_a_wrong_threshold_is_refused(thresholds, error, words):
    with pytest.raises(error) as caught:
        TraceRule(**thresholds)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"initial": 0.5}, ValueError, "initial must be finite and at least 1 and at most .*, but got 0.5"),
        ({"initial": float("inf")}, ValueError, "initial must be finite .*, but got inf"),
        ({"initial": 1e39}, ValueError, r"initial must be finite .* at most 3.40282e\+38, but got 1e\+39"),
        ({"initial": "1024"}, TypeError, "initial must be a number, but got '1024' of type str"),
        ({"minimum": 0}, ValueError, "minimum must be finite and greater than 0, but got 0"),
        ({"factor": 1.0}, ValueError, "factor must be finite and greater than 1, but got 1.0"),
        ({"window": 0}, ValueError, "window must be at least 1, but got 0"),
        ({"window": 2.5}, TypeError, "window must be an int, but got 2.5"),
    ],
)
def test_a_wrong_dynamic_loss_scale_is_refused(settings, error, message):
    with pytest.raises(error, match=f"loss scale {message}"):
        thor.DynamicLossScale(**settings)


def test_a_schedules_value_is_checked_at_its_step():
    optimizer, step = make(Mlp(), damping=lambda step: 0.1 - 0.1 * step)
    step(*batch())
    with pytest.raises(ValueError, match="damping must be finite and greater than 0 at step 1, but got 0.0"):
        step(*batch())


class Bare(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(5, np.float32)), name="scale")

    def construct(self, x):
        return x * self.scale


def test_a_network_without_a_layer_to_capture_is_refused_with_the_reason():
    with pytest.raises(
        ValueError, match=r"no layer to capture in Bare: .*dense, convolution, embedding.*no factors here"
    ):
        THOR(Bare(), 0.1, 0.1)
    net = Mlp()
    with pytest.raises(ValueError, match=r"no layer to capture in Mlp.*layers.0 \(Dense\): matches skip"):
        THOR(net, 0.1, 0.1, skip=[".*"])
    for parameter in net.trainable_params():
        parameter.requires_grad = False
    with pytest.raises(ValueError, match="no trainable weights|no layer to capture"):
        THOR(net, 0.1, 0.1)


def test_what_is_not_a_network_is_refused():
    with pytest.raises(
        TypeError, match="net must be an nn.Cell, but got an object of type list: give the network itself"
    ):
        THOR(Mlp().trainable_params(), 0.1, 0.1)


class Listed(nn.Cell):
    """Layers in a Python list, which MindSpore does not see."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Dense(5, 4), nn.Dense(4, 3)]


def test_a_network_whose_layers_lie_in_a_python_list_is_refused_with_the_cure():
    with pytest.raises(ValueError, match=r"Listed has no Parameters: .*attribute of a Cell, or lie in an nn.CellList"):
        THOR(Listed(), 0.1)


def test_params_are_parameters_or_groups():
    with pytest.raises(TypeError, match=r"params must be .*, but params\[0\] is 'layers.0.weight' of type str"):
        THOR(Mlp(), 0.1, params=["layers.0.weight"])
    with pytest.raises(ValueError, match="params must have at least one Parameter or group, but got none: leave it"):
        THOR(Mlp(), 0.1, params=[])


def test_only_a_network_is_detached():
    with pytest.raises(TypeError, match="net must be an nn.Cell, the network that THOR was made for, but got a list"):
        thor.detach(Mlp().trainable_params())


@pytest.mark.parametrize("given", ["optimizer.ckpt", []], ids=["path", "list"])
def test_a_state_is_loaded_from_a_dict(given):
    with pytest.raises(TypeError, match=r"parameters must be a dict, as ms.load_checkpoint\(path\) .*, but got a"):
        THOR(Mlp(), 0.1).load(given)


def test_a_class_is_no_loss():
    net = Mlp()
    with pytest.raises(TypeError, match=r"loss_fn must be .*, but got the class MSELoss: make one, as MSELoss\(\)"):
        TrainStep(net, nn.MSELoss, THOR(net, 0.1))


class Foreign:
    """An array of another library."""

    def __array__(self):
        return np.ones((8, 5), np.float32)


@pytest.mark.parametrize("own_loop", [False, True], ids=["step", "loop"])
def test_an_array_of_another_library_is_refused_with_its_place(own_loop):
    net = Mlp()
    optimizer = THOR(net, 0.1)
    step = thor.value_and_grad(net, optimizer) if own_loop else TrainStep(net, squared_error, optimizer)
    given = batch()[0], Foreign()
    with pytest.raises(TypeError, match=r"input 1 of a batch must be .*, but got a \w+.Foreign: .*np.asarray"):
        step(*given)


def test_attaching_twice_is_refused_with_the_cure():
    net = Mlp()
    THOR(net, 0.1, 0.1)
    with pytest.raises(ValueError, match=r"attached to a THOR optimizer already \(layer layers.0.*thor.detach\(net\)"):
        THOR(net, 0.1, 0.1)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net: net.layers.__setitem__(1, nn.Dense(4, 3)), "layer layers.1 is no longer part of the network"),
        (lambda net: setattr(net.layers[0], "weight", Parameter(Tensor(np.ones((4, 5), np.float32)), name="other")),
         "layer layers.0 has a new weight"),
        (lambda net: net.layers.append(nn.Dense(3, 3)), r"changed since .*: layers has a new member 2 \(Dense\)"),
        (lambda net: net.layers.__delitem__(1), "layer layers.1 is no longer part of the network"),
        (lambda net: setattr(net, "tanh", nn.ReLU()), r"changed .*: the network itself has another tanh \(ReLU\)"),
        (lambda net: net.__delattr__("tanh"), r"changed .*: the network itself has lost its member tanh \(Tanh\)"),
    ],
    ids=["captured layer", "weight", "added", "deleted", "replaced", "taken away"],
)  # fmt: skip
def test_a_network_changed_after_attaching_is_refused_at_the_next_step_with_the_layers_name(change, words, steps):
    """The next refresh is far away: a compiled step would go on with the old layers until then."""
    net = Mlp()
    _, step = make(net, interval=100)
    for _ in range(steps):
        step(*batch())
    change(net)
    with pytest.raises(RuntimeError, match=f"{words}.*make a new THOR"):
        step(*batch())


def test_a_network_detached_under_its_optimizer_is_refused():
    net = Mlp()
    _, step = make(net)
    thor.detach(net)
    with pytest.raises(RuntimeError, match="layer layers.0 is no longer part of the network"):
        step(*batch())


def test_a_step_whose_network_has_been_given_to_another_optimizer_is_refused():
    net = Mlp()
    _, step = make(net)
    thor.detach(net)
    make(net)
    with pytest.raises(RuntimeError, match="belongs to another THOR optimizer, which was made after this one"):
        step(*batch())


def test_train_step_refuses_what_does_not_belong_together():
    net = Mlp()
    optimizer = THOR(net, 0.1, 0.1)
    with pytest.raises(ValueError, match="made for another network"):
        TrainStep(Mlp(), squared_error, optimizer)
    with pytest.raises(TypeError, match="optimizer must be a thor.THOR or an nn.Optimizer, but got Dense"):
        TrainStep(net, squared_error, nn.Dense(3, 3))
    with pytest.raises(TypeError, match="loss_fn must be callable or None, but got 'mse'"):
        TrainStep(net, "mse", optimizer)
    with pytest.raises(ValueError, match="accumulate must be at least 1, but got 0"):
        TrainStep(net, squared_error, optimizer, accumulate=0)


def test_the_optimizer_is_not_called_with_gradients():
    with pytest.raises(RuntimeError, match="use step = thor.TrainStep"):
        THOR(Mlp(), 0.1, 0.1)((Tensor(np.zeros(1, np.float32)),))


def test_an_inner_optimizer_keeps_its_own_settings():
    net = Mlp()
    with pytest.raises(ValueError, match="weight_decay=0.1 is inner's to apply"):
        THOR(net, None, 0.1, weight_decay=0.1, inner=nn.Adam(net.trainable_params()))
    with pytest.raises(ValueError, match="params belongs to the default Momentum"):
        THOR(net, None, 0.1, inner=nn.Adam(net.trainable_params()), params=net.trainable_params())
    scheduled = nn.Adam(net.trainable_params(), nn.ExponentialDecayLR(0.1, 0.9, 4))
    with pytest.raises(ValueError, match="inner has a learning-rate schedule or groups of its own"):
        THOR(net, 0.1, 0.1, inner=scheduled)
    with pytest.raises(ValueError, match="momentum .* means nothing beside inner, but got 0.5: set it on Adam"):
        THOR(net, None, 0.1, 0.5, inner=nn.Adam(net.trainable_params()))


@pytest.mark.parametrize("kind", [nn.Adam, nn.SGD, first_order.Adafactor])
def test_an_inner_optimizer_must_not_divide_by_a_loss_scale_again(kind):
    net = Mlp()
    with pytest.raises(ValueError, match=f"loss_scale of 1.* got {kind.__name__} with 8.0: .*THOR, loss_scale=8.0"):
        THOR(net, None, 0.1, inner=kind(net.trainable_params(), 0.1, loss_scale=8.0))


class OwnMomentum(first_order.Momentum):
    pass


@pytest.mark.parametrize("kind", [nn.Adam, nn.RMSProp, first_order.Adam, first_order.Adafactor, first_order.Muon])
def test_a_clip_is_refused_where_the_step_is_not_rate_times_direction(kind):
    net = Mlp()
    with pytest.raises(ValueError, match=f"clip must be None with {kind.__name__} inside.* got 0.001: leave it out"):
        THOR(net, None, 0.1, clip=1e-3, inner=kind(net.trainable_params(), 0.1))


@pytest.mark.parametrize("kind", [nn.SGD, partial(nn.Momentum, momentum=0.9), OwnMomentum])
def test_a_clip_is_taken_with_momentum_and_sgd_inside(kind):
    net = Mlp()
    assert THOR(net, None, 0.1, clip=1e-3, inner=kind(net.trainable_params(), learning_rate=0.1)).options.clip == 1e-3


def test_a_callable_learning_rate_is_refused_beside_groups_with_their_own():
    net = Mlp()
    groups = [{"params": net.layers[0].trainable_params(), "lr": 0.2}, {"params": net.layers[1].trainable_params()}]
    with pytest.raises(ValueError, match="learning_rate must be a number, .* where a group of params has an lr"):
        THOR(net, lambda step: 0.1, 0.1, params=groups)


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ({"block_size": 2}, {"block_size": 3}, ("block_size 2 there, 3 here",)),
        ({"split": "block"}, {"split": "block+mean"}, ("split 'block' there, 'block+mean' here",)),
        ({"skip": ["layers.0"]}, {}, ("layers 1 there, 2 here", "first 'layers.1' there, 'layers.0' here")),
        ({"block_size": BlockPlan(layers={"x": 8})}, {"block_size": BlockPlan()}, ("exceptions 1 there, 0 here",)),
        (
            {"block_size": BlockPlan(layers={"layers.0": 2})},
            {"block_size": BlockPlan(layers={"layers.1": 2})},
            ("the first layer that differs in name, size or cut is here layers.0 (dense, inverse of A 1 x 6",),
        ),
    ],
)
def test_a_checkpoint_of_another_plan_is_refused_with_what_differs(theirs, ours, words, tmp_path):
    path = str(tmp_path / "optimizer.ckpt")
    ms.save_checkpoint(make(Mlp(), **theirs)[0], path)
    optimizer, _ = make(Mlp(), **ours)
    before = values(optimizer)
    with pytest.raises(ValueError, match="the checkpoint belongs to another optimizer: ") as caught:
        ms.load_param_into_net(optimizer, ms.load_checkpoint(path))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert all(np.array_equal(value, before[name]) for name, value in values(optimizer).items())


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (Mixed, "layers 3 there, 2 here"),
        (lambda: Mlp((5, 4, 8)), r"differs .* is here layers.1 \(dense, inverse of A "),
    ],
)
def test_a_checkpoint_of_another_network_is_refused(theirs, words, tmp_path):
    path = str(tmp_path / "optimizer.ckpt")
    ms.save_checkpoint(make(theirs())[0], path)
    optimizer, _ = make(Mlp())
    with pytest.raises(ValueError, match=f"the checkpoint belongs to another optimizer: .*{words}"):
        ms.load_param_into_net(optimizer, ms.load_checkpoint(path))
