"""A rank whose settings differ is told which, on all ranks, before a collective waits for ever."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import first_order
import thor
from tests.support.networks import Mlp, batch, make, squared_error
from thor.curvature.trace_rule import Decision
from thor.distributed.agreement import same_everywhere, same_values
from thor.distributed.ranks import Ranks
from thor.refreshing import Refreshing
from thor.shared_settings import shared_settings


class Told(Ranks):
    """A rank, and what sums over all ranks answer: given rank 0's message first, then its own count."""

    def __init__(self, rank, answers=()):
        self.rank, self.answers, self.sent, self.bytes = rank, list(answers), [], 0

    def total(self, values):
        self.sent.append(values)
        return self.answers.pop(0) if self.answers else values


def settings_of(net=None, **options):
    optimizer, _ = make(net or Mlp(), **options)
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing())
    return shared_settings(optimizer, 1)


def different(mine, theirs):
    return {name for name in mine if repr(mine[name]) != repr(theirs[name])}


def test_a_rank_with_another_setting_is_refused_by_its_name():
    settings = settings_of()
    first = Told(0)
    same_everywhere(first, settings)
    same_everywhere(Told(1, first.sent[:1]), settings)
    for name in settings:
        with pytest.raises(ValueError, match=f"rank 1: settings must be the same .* rank 0: {name}='another'"):
            same_everywhere(Told(1, first.sent[:1]), settings | {name: "another"})
    with pytest.raises(ValueError, match="rank 2: .* another rank's"):  # this one is right, but must not wait
        same_everywhere(Told(2, [first.sent[0], np.ones(1, np.float32)]), settings)


def test_settings_of_a_step_without_thor_are_compared_too():
    def of(**options):
        net = Mlp()
        step = thor.TrainStep(net, squared_error, nn.Momentum(net.trainable_params(), 0.1, 0.9), **options)
        return shared_settings(step.control, 1)

    assert different(of(clip_norm=1.0), of(clip_norm=2.0)) == {"clip_norm"}
    assert different(of(max_bad_steps=3), of()) == {"max_bad_steps"}


def test_the_scale_of_the_fisher_is_compared():
    assert different(settings_of(weight_sharing="pooled"), settings_of(weight_sharing="expand")) == {"weight_sharing"}


def test_a_rank_that_has_loaded_other_values_is_told_which():
    weights = Mlp(seed=0).trainable_params()
    first = Told(0)
    same_values(first, weights)
    same_values(Told(1, first.sent[:1]), weights)
    other = Mlp(seed=0)
    other.layers[1].bias.set_data(other.layers[1].bias + 1e-3)
    with pytest.raises(ValueError, match=r"rank 1: values that were loaded .* layers.1.bias and 0 more; load one"):
        same_values(Told(1, first.sent[:1]), other.trainable_params())
    with pytest.raises(ValueError, match="rank 2: .* another rank's"):
        same_values(Told(2, [first.sent[0], np.ones(1, np.float32)]), weights)


RATE, CLOCKS = {"learning_rate"}, {"interval", "factor_interval"}


@pytest.mark.parametrize(
    ("options", "names"),
    [({"interval": 7}, CLOCKS), ({"interval": lambda step: 7}, CLOCKS), ({"damping": 0.2}, {"damping"}),
     ({"factor_interval": 3}, {"factor_interval"}), ({"loss_scale": 8.0}, {"loss_scale"}),
     ({"loss_scale": thor.DynamicLossScale(initial=1.0, window=500)}, {"loss_scale's rule"}),
     ({"block_size": 2}, {"block plan"}), ({"inverse": "newton-schulz"}, {"inverse"}),
     ({"lr": 0.1}, RATE), ({"lr": thor.PolynomialRate(0.05, 4.0, 53, 156)}, RATE), ({"lr": [0.2, 0.1]}, RATE),
     ({"lr": nn.CosineDecayLR(0.0, 0.1, 9)}, RATE), ({"momentum": 0.8}, {"momentum of inner"}),
     ({"refresh": thor.TraceRule(update=0.5, stop=0.1)}, {"refresh"}), ({"factor_decay": 0.5}, {"factor_decay"}),
     ({"factor_share": 0.5}, {"factor_share"}), ({"clip": 0.5}, {"clip"}), ({"clip_each": 0.5}, {"clip_each"}),
     ({"graft": True}, {"graft"}), ({"damping": thor.RelativeDamping(0.1)}, {"damping"}),
     ({"max_bad_steps": 7}, {"max_bad_steps"}), ({"weight_decay": 0.1}, {"weight_decay", "weight_decay of inner"}),
     ({"weight_decay": 0.1, "weight_decay_mode": "decoupled"}, {"weight_decay", "weight_decay_mode", "decays"})],
    ids=lambda value: "-".join(sorted(value)),  # the same in every process
)  # fmt: skip
def test_what_decides_messages_or_weights_is_among_them(options, names):
    mine, theirs = settings_of(), settings_of(**options)
    assert different(mine, theirs) == names


def test_how_work_is_shared_and_batches_are_cut_is_among_them():
    optimizer, _ = make(Mlp())
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing())
    mine = shared_settings(optimizer, 1)
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing(per="layer"))
    theirs = shared_settings(optimizer, 2)
    assert different(mine, theirs) == {"sharing", "accumulate"}


def test_decoupled_decays_of_groups_are_compared():
    """Momentum is not told of them, so that it has nothing to compare."""

    def shared(decay):
        net = Mlp()
        biases = [weight for weight in net.trainable_params() if weight.name.endswith("bias")]
        others = [weight for weight in net.trainable_params() if not weight.name.endswith("bias")]
        groups = [{"params": others, "weight_decay": decay}, {"params": biases, "weight_decay": 0.0}]
        return settings_of(net, params=groups, weight_decay_mode="decoupled")

    mine, theirs = shared(0.1), shared(0.2)
    assert different(mine, theirs) == {"decays"}


def test_a_rank_at_another_step_is_refused():
    """One that resumed from an older checkpoint: with constant schedules nothing else tells them apart."""
    optimizer, step = make(Mlp())
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing())
    before = shared_settings(optimizer, 1)
    optimizer.ranks = None
    step(*batch())
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing())
    after = shared_settings(optimizer, 1)
    assert different(before, after) == {"step", "next_refresh", "next_gather"}


def muon_by_group(params, rate, use_muon=True):
    matrices, others = [p for p in params if p.ndim > 1], [p for p in params if p.ndim <= 1]
    return first_order.Muon([{"params": matrices, "use_muon": use_muon}, {"params": others}], rate)


@pytest.mark.parametrize(
    ("inner", "changed", "name"),
    [(first_order.Adam, {"beta1": 0.8}, "beta1"), (first_order.Adam, {"beta2": 0.9}, "beta2"),
     (first_order.Adam, {"epsilon": 1e-3}, "epsilon"), (first_order.Adafactor, {"beta2_decay": -0.7}, "groups"),
     (first_order.Adafactor, {"eps": (None, 1e-2)}, "groups"), (first_order.Adafactor, {"d": 2.0}, "groups"),
     (first_order.Adafactor, {"weight_decay": 0.1}, "groups"), (first_order.Adafactor, {"maximize": True}, "groups"),
     (first_order.Muon, {"momentum": 0.8}, "momentum"), (first_order.Muon, {"weight_decay": 0.2}, "weight_decay"),
     (first_order.Muon, {"ns_steps": 4}, "iteration"), (first_order.Muon, {"ns_dtype": ms.bfloat16}, "iteration"),
     (first_order.Muon, {"adjust_lr_fn": "match_rms_adamw"}, "adjust_lr_fn"),
     (muon_by_group, {"use_muon": False}, "by_muon")],
)  # fmt: skip
def test_what_the_inner_optimizer_is_made_with_is_compared(inner, changed, name):
    def shared(**options):
        net = Mlp()
        return settings_of(lr=None, net=net, inner=inner(net.trainable_params(), 0.1, **options))

    mine, theirs, again = shared(), shared(**changed), shared()
    assert repr(mine) == repr(again)
    assert different(mine, theirs) == {f"{name} of inner"}


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"shampoo_beta": 0.8}, "shampoo_beta"), ({"precondition_frequency": 5}, "precondition_frequency"),
     ({"merge_dims": True}, "shapes"), ({"normalize_grads": True}, "normalize_grads"),
     ({"correct_bias": False}, "correct_bias"), ({"epsilon": 1e-3}, "epsilon")],
)  # fmt: skip
def test_what_an_optimizer_without_thor_is_made_with_is_compared(changed, name):
    def shared(**options):
        net = Mlp()
        step = thor.TrainStep(net, squared_error, first_order.SOAP(net.trainable_params(), 0.1, **options))
        return shared_settings(step.control, 1)

    mine, theirs, again = shared(), shared(**changed), shared()
    assert repr(mine) == repr(again)
    assert different(mine, theirs) == {f"{name} of inner"}


def test_all_ranks_decide_by_the_first_ones_traces():
    """A trace that one processor rounds to the other side of the threshold turns no decision."""
    net = Mlp()
    optimizer, step = make(net, refresh=thor.TraceRule(update=0.1, stop=0.0))
    step(*batch())
    adopted = optimizer.own_state.traces.asnumpy()
    optimizer.ranks = Told(1, [2 * adopted])
    optimizer.own_state.schedule_refresh(0)
    refreshing = Refreshing(optimizer, step.update)
    refreshing.refresh_if_due()
    assert refreshing.sent == 0, "the answers were told, nothing was sent"
    assert [record.decision for record in optimizer.history[-2:]] == [Decision.UPDATE] * 2
    np.testing.assert_array_equal(optimizer.ranks.sent[0], np.zeros(4))
