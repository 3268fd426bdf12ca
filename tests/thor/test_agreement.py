"""A rank whose settings differ is told which, on all ranks, before a collective waits for ever."""

from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import nn

import first_order
import thor
from tests.networks import Mlp, batch, make
from thor.agreement import refresh_alike, settings_to_share
from thor.distributed import Ranks, same_everywhere
from thor.refresh import Decision


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
    return settings_to_share(optimizer, 1)


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


@pytest.mark.parametrize(
    "options",
    [{"interval": 7}, {"interval": lambda step: 7}, {"damping": 0.2}, {"factor_interval": 3}, {"loss_scale": 8.0},
     {"weight_decay": 0.1}, {"block_size": 2}, {"lr": 0.1}, {"lr": thor.PolynomialRate(0.05, 4.0, 53, 156)},
     {"lr": [0.2, 0.1]}, {"lr": nn.CosineDecayLR(0.0, 0.1, 9)}, {"momentum": 0.8}, {"inverse": "newton-schulz"},
     {"loss_scale": thor.DynamicLossScale(initial=1.0, window=500)}],
    ids=["interval", "interval's rule", "damping", "factor_interval", "loss_scale", "weight_decay", "block_size",
         "rate", "rate's rule", "rates", "rate's Cell", "momentum", "inverse", "loss_scale's rule"],
)  # fmt: skip
def test_what_decides_messages_or_weights_is_among_them(options):
    mine, theirs = settings_of(), settings_of(**options)
    assert any(repr(mine[name]) != repr(theirs[name]) for name in mine)


def test_a_rank_at_another_step_is_refused():
    """One that resumed from an older checkpoint: with constant schedules nothing else tells them apart."""
    optimizer, step = make(Mlp())
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing())
    before = settings_to_share(optimizer, 1)
    optimizer.ranks = None
    step(*batch())
    optimizer.ranks = SimpleNamespace(sharing=thor.Sharing())
    after = settings_to_share(optimizer, 1)
    assert {name for name in after if repr(after[name]) != repr(before[name])} == {
        "step", "next_refresh", "next_gather"
    }  # fmt: skip


@pytest.mark.parametrize("changed", [{"beta1": 0.8}, {"beta2": 0.9}, {"epsilon": 1e-3}])
def test_what_adam_inside_is_made_with_is_compared(changed):
    def shared(**options):
        net = Mlp()
        return settings_of(lr=None, net=net, inner=first_order.Adam(net.trainable_params(), 0.1, **options))

    mine, theirs, again = shared(), shared(**changed), shared()
    assert repr(mine) == repr(again)
    assert [name for name in mine if repr(mine[name]) != repr(theirs[name])] == [f"{next(iter(changed))} of inner"]


def test_all_ranks_decide_by_the_first_ones_traces():
    """A trace that one processor rounds to the other side of the threshold turns no decision."""
    net = Mlp()
    optimizer, step = make(net, refresh=thor.TraceRule(update=0.1, stop=0.0))
    step(*batch())
    adopted = optimizer.traces.asnumpy()
    optimizer.ranks = Told(1, [2 * adopted])
    assert refresh_alike(optimizer, [0, 1]) == 0, "the answers were told, nothing was sent"
    assert [record.decision for record in optimizer.history[-2:]] == [Decision.UPDATE] * 2
    np.testing.assert_array_equal(optimizer.ranks.sent[0], np.zeros(4))
