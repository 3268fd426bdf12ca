"""Which projections of nn.MultiheadAttention are captured, what is left out and why, and what happens to it then."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import thor
from tests.support.networks import fill, gradients, make, squared_error, values
from thor.capture.targets import find_targets
from thor.profile import gather

E = 8


class Attending(nn.Cell):
    """One or two attentions over inputs [B, T, E], the mean over tokens, a dense layer."""

    def __init__(self, attention=None, other=None):
        super().__init__()
        self.attention = attention or nn.MultiheadAttention(E, 2, batch_first=True)
        self.other, self.head = other, nn.Dense(E, 3)
        fill(self, 3)

    def construct(self, x):
        x = self.attention(x, x, x)[0]
        if self.other is not None:
            x = x + self.other(x, x, x)[0]
        return self.head(x).mean(1)


def data(seed=0):
    rng = np.random.default_rng(seed)
    return Tensor(rng.standard_normal((4, 5, E)).astype(np.float32)), Tensor(
        rng.standard_normal((4, 3)).astype(np.float32)
    )


def names(optimizer):
    return [layer.name for layer in optimizer.layers]


def reasons(optimizer):
    return {item.name: item.reason for item in optimizer.left_out}


def check_step(net, optimizer, step, plain):
    """A step moves the weights named so by the plain gradient, and all others otherwise."""
    before, grads = values(net), gradients(net, squared_error, *data())
    step(*data())
    for name, now in values(net).items():
        follows = np.allclose(now, before[name] - 0.05 * grads[name], rtol=1e-3, atol=1e-6)
        assert follows == (name in plain), name
    assert {record.layer for record in optimizer.history} == set(names(optimizer))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("skip", "captured", "plain"),
    [
        (("in_proj",), ["attention.out_proj", "head"], ["attention.in_proj_weight", "attention.in_proj_bias"]),
        (("out_proj",), ["attention.in_proj", "head"], ["attention.out_proj.weight", "attention.out_proj.bias"]),
        (("^attention$",), ["head"],
         [f"attention.{part}" for part in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]),
    ],
    ids=["in_proj", "out_proj", "attention"],
)  # fmt: skip
def test_a_projection_that_is_skipped_takes_the_plain_gradient(skip, captured, plain, jit):
    net = Attending()
    optimizer, step = make(net, skip=skip, jit=jit)
    assert names(optimizer) == captured
    assert set(reasons(optimizer).values()) == {"matches skip"}
    check_step(net, optimizer, step, plain)


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_keys_that_are_added_leave_the_attention_out(options):
    net = Attending(nn.MultiheadAttention(E, 2, batch_first=True, **options))
    optimizer, step = make(net)
    why = "an attention with add_bias_kv or add_zero_attn"
    assert names(optimizer) == ["head"]
    assert reasons(optimizer) == {"attention.in_proj": why, "attention.out_proj": why}
    check_step(net, optimizer, step, [name for name in values(net) if name.startswith("attention")])


def test_only_what_is_optimized_and_trains_is_captured():
    net = Attending()
    weights = [net.attention.out_proj.weight, *net.head.trainable_params()]
    optimizer, step = make(net, params=weights)
    assert names(optimizer) == ["attention.out_proj", "head"]
    assert reasons(optimizer) == {
        "attention.in_proj": "not among the optimizer's parameters",
        "attention.out_proj.bias": "not among the optimizer's parameters",
    }
    still = net.attention.in_proj_weight.asnumpy().copy()
    step(*data())
    np.testing.assert_array_equal(net.attention.in_proj_weight.asnumpy(), still)
    thor.detach(net)
    net.attention.in_proj_weight.requires_grad = net.attention.out_proj.bias.requires_grad = False
    optimizer = thor.THOR(net, 0.1, 0.1)
    assert reasons(optimizer) == {"attention.in_proj": "frozen"}
    assert [layer.a_dim for layer in optimizer.layers] == [E, E + 1]


def test_two_optimizers_may_share_one_attention():
    net = Attending()
    halves = [net.attention.in_proj_weight], [net.attention.out_proj.weight, *net.head.trainable_params()]
    steps = [make(net, params=half)[1] for half in halves]
    before = values(net)
    for step in (*steps, *steps):
        step(*data())
    assert not any(np.array_equal(values(net)[w.name], before[w.name]) for half in halves for w in half)
    with pytest.raises(ValueError, match="net is attached to a THOR optimizer already"):
        thor.THOR(net, 0.1, 0.1)


def test_an_attention_that_is_used_twice_has_one_expectation_over_its_uses():
    attention = nn.MultiheadAttention(E, 2, batch_first=True)
    net = Attending(attention, attention)
    optimizer, step = make(net, lr=0.0, split="block")
    step(*data())
    assert names(optimizer) == ["attention.in_proj", "attention.out_proj", "head"]
    assert [layer.a.count for layer in optimizer.captured] == [2.0, 2.0, 1.0]
    twins = Attending(nn.MultiheadAttention(E, 2, batch_first=True), nn.MultiheadAttention(E, 2, batch_first=True))
    for cell, source in ((twins.attention, net.attention), (twins.other, net.attention), (twins.head, net.head)):
        for mine, theirs in zip(cell.get_parameters(), source.get_parameters(), strict=True):
            mine.set_data(Tensor(theirs.asnumpy()))
    apart, step = make(twins, lr=0.0, split="block")
    step(*data())
    for part in ("in_proj", "out_proj"):
        (a, g), (a_1, g_1), (a_2, g_2) = (
            optimizer.factors(f"attention.{part}"), apart.factors(f"attention.{part}"), apart.factors(f"other.{part}")
        )  # fmt: skip
        np.testing.assert_allclose(a, (a_1 + a_2) / 2, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(g, g_1 + g_2, rtol=1e-3, atol=1e-4 * np.abs(g).max())


def test_attentions_with_one_weight_are_one_layer():
    first, second = (nn.MultiheadAttention(E, 2, batch_first=True, has_bias=False) for _ in range(2))
    second.out_proj.weight = first.out_proj.weight
    optimizer, step = make(Attending(first, second))
    assert names(optimizer) == ["attention.in_proj", "attention.out_proj", "other.in_proj", "head"]
    step(*data())
    assert [layer.a.count for layer in optimizer.captured] == [1.0, 2.0, 1.0, 1.0]


def test_a_weight_that_a_layer_of_another_kind_has_too_is_left_out():
    net = Attending()
    net.head = nn.Dense(E, E, has_bias=False)
    net.head.weight = net.attention.out_proj.weight
    optimizer = thor.THOR(net, 0.1, 0.1)
    assert names(optimizer) == ["attention.in_proj"]
    assert reasons(optimizer) == {
        "attention.out_proj": "weight of other layers too",
        "head": "attention.out_proj, which is left out, has its weight too",
    }


def test_biases_of_three_weights_take_the_plain_gradient():
    net = Attending(nn.MultiheadAttention(E, 2, batch_first=True, kdim=6, vdim=7))
    found = find_targets(net)
    assert [(t.name, t.copies, t.a_dim, t.g_dim) for t in found[0]] == [
        ("attention.q_proj", 1, E, E), ("attention.k_proj", 1, 6, E), ("attention.v_proj", 1, 7, E),
        ("attention.out_proj", 1, E + 1, E), ("head", 1, E + 1, 3),
    ]  # fmt: skip
    assert [(item.name, item.reason) for item in found[1]] == [("attention.in_proj_bias", "bias of three weights")]


class Own(nn.MultiheadAttention):
    """A subclass with a construct of its own."""

    def construct(self, query, key, value):
        return (self.out_proj(ops.matmul(value, self.in_proj_weight[16:].T)),)


class Renamed(nn.MultiheadAttention):
    """A subclass that computes what its parent does."""


def test_a_subclass_is_captured_unless_it_has_a_construct_of_its_own():
    own = thor.THOR(Attending(Own(E, 2)), 0.1, 0.1)
    assert names(own) == ["attention.out_proj", "head"]
    assert reasons(own) == {"attention": "overrides MultiheadAttention.construct"}
    net = Attending(Renamed(E, 2, batch_first=True))
    optimizer, step = make(net)
    assert names(optimizer) == ["attention.in_proj", "attention.out_proj", "head"]
    step(*data())
    assert isinstance(net.attention, Renamed) and thor.detach(net) == 2 and type(net.attention) is Renamed


def test_detach_restores_everything():
    net = Attending()
    before, own = values(net), net(data()[0]).asnumpy()
    _, step = make(net, lr=0.0)
    step(*data())
    assert thor.detach(net) == 2 and type(net.attention) is nn.MultiheadAttention
    assert not [name for cell in net.cells() for name in vars(cell) if name.startswith("thor_")]
    for name, value in values(net).items():
        np.testing.assert_array_equal(value, before[name])
    np.testing.assert_array_equal(net(data()[0]).asnumpy(), own)


def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_been_interrupted(tmp_path):
    found = []
    for interrupted in (False, True):
        net = Attending()
        optimizer, step = make(net, block_size=3, factor_decay=0.9, momentum=0.9)
        step(*data(1))
        if interrupted:
            ms.save_checkpoint(optimizer.state(), str(tmp_path / "thor.ckpt"))
            ms.save_checkpoint(net, str(tmp_path / "net.ckpt"))
            net = Attending()
            ms.load_param_into_net(net, ms.load_checkpoint(str(tmp_path / "net.ckpt")))
            optimizer, step = make(net, block_size=3, factor_decay=0.9, momentum=0.9)
            optimizer.load(ms.load_checkpoint(str(tmp_path / "thor.ckpt")))
        step(*data(2))
        found.append(values(net))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)


def test_a_replaced_weight_is_noticed():
    net = Attending()
    _, step = make(net)
    net.attention.out_proj.weight = ms.Parameter(Tensor(np.ones((E, E), np.float32)), name="another")
    with pytest.raises(RuntimeError, match="layer attention.out_proj has a new weight Parameter"):
        step(*data())


def test_a_layer_that_is_frozen_does_not_move_until_it_trains_again():
    net = Attending()
    _, step = make(net)
    step(*data())
    net.attention.in_proj_weight.requires_grad = False
    still = net.attention.in_proj_weight.asnumpy().copy()
    step(*data())
    np.testing.assert_array_equal(net.attention.in_proj_weight.asnumpy(), still)
    net.attention.in_proj_weight.requires_grad = True
    step(*data())
    assert not np.array_equal(net.attention.in_proj_weight.asnumpy(), still)


def test_the_profiler_gathers_the_whole_factors_of_each_third():
    """Without the number of examples every row is a term."""
    net = Attending()
    optimizer, step = make(net, lr=0.0, split="block", weight_sharing="expand")
    step(*data())
    expected = {layer.name: optimizer.factors(layer.name) for layer in optimizer.layers}
    thor.detach(net)
    for layer in gather.gather(net, gather.loss_of(net, squared_error), lambda: iter([data()]), find_targets(net)[0]):
        for mine, theirs in zip((layer.a, layer.g), expected[layer.name], strict=True):
            np.testing.assert_allclose(mine.reshape(theirs.shape), theirs, rtol=1e-3, atol=1e-5)
        assert len(layer.a) == (3 if layer.name == "attention.in_proj" else 1)
