"""A whole measurement of a tiny network: complete, interruptible, resumable."""

import copy

import numpy as np
import pytest
from mindspore import nn

from tests.support import reference
from tests.support.networks import Mixed, Mlp, batch, images, squared_error, values
from thor import BlockPlan
from thor.capture.targets import find_targets
from thor.curvature.damping import pi_split
from thor.factors.blocks import SPLITS
from thor.profile import gather, spectral, timing
from thor.profile import measure as measuring
from thor.profile.factor_shape import Timing
from thor.profile.measure import Task, measure
from thor.profile.profile_file import Profile
from thor.runtime import device

pytestmark = pytest.mark.usefixtures("quick")
DIMS = [1, 2, 4, 8]
INVERSE = device.inverse_method()  # of the device that the tests run on
OTHER_INVERSE = next(method for method in device.INVERSES if method != INVERSE)


def task(net=None, make_batch=batch, **options):
    def batches():
        return iter([make_batch(), make_batch(seed=2)])

    settings = {"dims": DIMS, "rank": 2, "describe": {"network": "tiny", "batches": 2, "source": "test"}} | options
    net = net or Mlp()
    return Task(net=net, forward=gather.loss_of(net, squared_error), batches=batches, **settings)


@pytest.fixture(scope="module")
def complete():
    """One profile of an Mlp, measured once, its saved stages, and what was gathered from the network."""
    patch = pytest.MonkeyPatch()
    patch.setattr(timing, "repeat", lambda call, *_: (call(), Timing(1e-3, 1e-3, 1e-3, 1))[1])
    patch.setattr(timing, "SECONDS_PER_SIZE", 0.0)
    net = Mlp()
    saved = []
    gathered = []
    real = gather.gather
    patch.setattr(gather, "gather", lambda *a: gathered.extend(real(*a)) or list(gathered))
    found = measure(task(net), save=lambda current: saved.append(copy.deepcopy(current)))
    patch.undo()
    return gathered, found, saved


def test_a_complete_profile_has_every_number_and_survives_its_file(complete, tmp_path):
    _, found, _ = complete
    assert found.complete
    assert set(found.calls) == set(found.blocks) == set(found.refreshes) == set(DIMS)
    assert [layer.name for layer in found.layers] == ["layers.0", "layers.1"]
    assert [(f.dim, f.copies) for f in found.factors] == [(6, 1), (4, 1), (5, 1), (3, 1)]
    assert found.settings["rank"] == 2 and found.settings["network"] == "tiny"
    assert found.settings["other_entries"] == 0
    assert (found.environment["device"], found.environment["inverse"]) == (device.current(), INVERSE)
    found.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == found


def test_losses_errors_and_cosines_are_those_of_the_gathered_factors(complete):
    """The cosine: between the preconditioned gradient with and without the split, by the explicit Kronecker product."""
    statistics, found, _ = complete
    for layer, measured in zip(statistics, found.layers, strict=True):
        wholes = (layer.a[0].astype(np.float64), layer.g[0].astype(np.float64))
        dampings = pi_split(0.03, np.trace(wholes[0]), np.trace(wholes[1]), len(wholes[0]), len(wholes[1]))
        whole_inverses = [reference.damped_inverse(m, d) for m, d in zip(wholes, dampings, strict=True)]
        unsplit = reference.kron_direction(layer.gradient[0], *whole_inverses)
        for i, size in enumerate(DIMS):
            for split in SPLITS:
                inverses = []
                sides = zip((measured.a, measured.g), wholes, (layer.mean_a, layer.mean_g), dampings, strict=True)
                for factor, whole, mean, damping in sides:
                    has_bias = layer.bias and factor.side == "a"
                    cut = BlockPlan(block_size=size, split=split, rank=2).cut(len(whole), bias=has_bias)
                    made = spectral.Split(whole[None].astype(np.float32), cut, mean)
                    thin = 0 if made.beside is None else made.beside[0].T @ made.beside[0]
                    if cut.bias_apart:
                        approximation = sum(reference.with_mean_and_bias(whole, mean[0], cut.size))
                    else:
                        approximation = reference.block_diagonal(whole - thin, cut.size) + thin
                    norm = np.linalg.norm(whole, 2)
                    assert factor.norm == pytest.approx(norm, rel=1e-4)
                    assert factor.error[split][i] == pytest.approx(
                        np.linalg.norm(whole - approximation, 2) / norm, abs=1e-4
                    )
                    if split == "block":
                        kept = np.linalg.norm(approximation, 2) / norm
                        assert factor.loss["channel"][i] == pytest.approx(1 - kept, abs=1e-4)
                    inverses.append(reference.damped_inverse(approximation, damping))
                direction = reference.kron_direction(layer.gradient[0], *inverses)
                cosine = (direction * unsplit).sum() / np.linalg.norm(direction) / np.linalg.norm(unsplit)
                assert measured.cosine[split][i] == pytest.approx(cosine, abs=1e-3)
    assert all(curve[-1] == pytest.approx(1.0) for layer in found.layers for curve in layer.cosine.values())
    assert all(curve[-1] == 0.0 for f in found.factors for curve in f.loss.values())


class Stage:
    """Progress that interrupts at one of its calls, or only counts them."""

    def __init__(self, at=None):
        self.at, self.calls, self.stages = at, 0, []

    def _call(self):
        self.calls += 1
        if self.calls - 1 == self.at:
            raise KeyboardInterrupt

    def stage(self, name, total):
        self.stages.append([name, total, 0.0])
        self._call()

    def advance(self, amount):
        self.stages[-1][2] += amount
        self._call()


@pytest.fixture
def stand_in(monkeypatch, complete):
    """Passes through the network answered from memory: what is tested is the order of things, not the numbers."""
    known = {layer.name: layer for layer in complete[0]}

    def gathered(net, forward, batches, targets, on_batch):
        for _ in batches():
            on_batch()
        return [copy.copy(known[target.name]) for target in targets]

    monkeypatch.setattr(measuring.gather, "gather", gathered)


def units(found):
    """What is measured, one by one."""
    return {
        *(name for name in ("calls", "blocks") if getattr(found, name)),  # all sizes at once
        *(("refreshes", dim) for dim in found.refreshes),
        *(("layers", layer.name) for layer in found.layers),
    }


@pytest.mark.usefixtures("stand_in")
def test_an_interrupt_anywhere_loses_one_unit_at_most_and_nothing_is_measured_twice(quick, monkeypatch):
    """At every call of the progress, which is where a signal could come between two units."""
    counting = Stage()
    small = task(Mlp(), memory=4 * 4 * (36 + 16))  # a group for each layer
    whole = measure(small, progress=counting)
    assert [round(done / total, 6) for _, total, done in counting.stages] == [1.0] * len(counting.stages)
    assert [name for name, _, _ in counting.stages] == [
        "timing inverses", "timing the network's refresh",
        "passes for layers, group 1 of 2", "losses, group 1 of 2",
        "passes for layers, group 2 of 2", "losses, group 2 of 2",
    ]  # fmt: skip
    all_units, timed = units(whole), []
    real = measuring._measure_layer
    monkeypatch.setattr(measuring, "_measure_layer", lambda layer, *a: timed.append(layer.name) or real(layer, *a))
    for at in range(counting.calls):
        saved: list[Profile] = []
        timed.clear()
        quick[0] = 0
        with pytest.raises(KeyboardInterrupt):
            measure(small, progress=Stage(at), save=lambda current, to=saved: to.append(copy.deepcopy(current)))
        before = quick[0] + len(timed)
        part = saved[-1] if saved else None
        kept = units(part) if part else set()
        assert len(kept) >= before - 1
        assert part is None or not part.complete
        resumed = measure(small, resume=part)
        assert resumed.complete
        assert units(resumed) == all_units
        assert [layer.name for layer in resumed.layers] == ["layers.0", "layers.1"]
        assert quick[0] + len(timed) <= len(all_units) + 1  # at most the lost one twice


def test_everything_new_is_saved_at_once(complete):
    _, found, saved = complete
    sizes = [len(units(each)) for each in saved]
    assert sizes == sorted(sizes) and max(b - a for a, b in zip(sizes, sizes[1:], strict=False)) <= 2
    assert sizes[-1] == len(units(found)) and [each.complete for each in saved] == [False] * (len(saved) - 1) + [True]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": [1, 2, 4]}, ("dims = [1, 2, 4, 8], not [1, 2, 4]",)),
        ({"rank": 3}, ("rank = 2, not 3",)),
        ({"damping": 0.5}, ("damping = 0.03, not 0.5",)),
        ({"skip": ["layers.1"]}, ("skip = [], not ['layers.1']",)),
        ({"details": False}, ("details = True, not False",)),
        ({"inverse": OTHER_INVERSE}, (f"inverse = '{INVERSE}', not '{OTHER_INVERSE}'",)),
        ({"describe": {"network": "tiny", "batches": 3, "source": "test"}}, ("batches = 2, not 3",)),
        ({"net": Mlp((5, 4, 4))}, ("the size of layers.1.g = (3, 1), not (4, 1)",)),
        ({"net": Mlp((5, 4, 3, 3))}, ("layers = ['layers.0', 'layers.1'], not ['layers.0', 'layers.1', 'layers.2']",)),
    ],
)
def test_going_on_with_other_options_is_refused_by_name(options, words, complete):
    part = copy.deepcopy(complete[1])
    with pytest.raises(ValueError, match="the interrupted profile has .*give the same options, or start afresh") as e:
        measure(task(**options), resume=part)
    assert all(word in str(e.value) for word in words), str(e.value)


@pytest.mark.usefixtures("stand_in")
def test_going_on_in_another_place_is_refused_and_with_another_threshold_is_not(complete):
    part = copy.deepcopy(complete[1])
    part.environment["mindspore"] = "1.0"
    with pytest.raises(ValueError, match="the interrupted profile has mindspore = '1.0', not '2"):
        measure(task(), resume=part)
    assert measure(task(threshold=0.2), resume=copy.deepcopy(complete[1])).threshold == 0.2


def test_both_orders_of_a_convolution_and_a_refresh_that_is_too_large_to_hold():
    """Only kernels with several positions have two orders. Under the limit refreshes are modelled from blocks."""
    net = Mixed().set_train(False)
    net.conv.set_train(True)
    before, modes = values(net), [(name, cell.training) for name, cell in net.cells_and_names()]
    targets = find_targets(net)[0]
    largest = max(gather.bytes_of(target) for target in targets)
    found = measure(task(net, images, dims=[1, 8], memory=4 * largest))
    assert ["position" in f.loss for f in found.factors] == [True, False, True, False, False, False]
    for factor in found.factors[:4:2]:
        assert factor.kind == "conv" and factor.loss["position"][0] == pytest.approx(
            factor.loss["channel"][0], abs=1e-4
        )
    assert {n: measure.timing.repeats == 0 for n, measure in found.refreshes.items()} == {
        n: 3 * timing.state_bytes(
            gather.shapes_of(targets), BlockPlan(block_size=n, split="block"), "lapack") > 4 * largest
        for n in (1, 8)
    }  # fmt: skip
    assert [(name, cell.training) for name, cell in net.cells_and_names()] == modes
    assert all(np.array_equal(before[name], value) for name, value in values(net).items()), "BatchNorm's averages"


def test_without_details_there_is_what_the_choice_needs():
    found = measure(task(Mlp(), details=False, dims=None))
    assert found.dims == [1, 16]
    assert all(f.error == {} and set(f.loss) == {"channel"} for f in found.factors)
    assert all(layer.cosine == {} for layer in found.layers)
    assert found.crossing().chosen in (1, 16)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dims": []}, ValueError, ("dims", "empty")),
        ({"dims": [4]}, ValueError, ("dims", "at least two", "[4]")),
        ({"dims": [0, 4]}, ValueError, ("dims", "at least 1", "0")),
        ({"dims": [1, 2.5]}, TypeError, ("dims", "int", "2.5")),
        ({"threshold": 0.0}, ValueError, ("threshold", "between 0 and 1", "0.0")),
        ({"threshold": 1.0}, ValueError, ("threshold", "between 0 and 1", "1.0")),
        ({"damping": -0.1}, ValueError, ("damping", "greater than 0", "-0.1")),
        ({"damping": float("nan")}, ValueError, ("damping", "finite", "nan")),
        ({"rank": 0}, ValueError, ("rank", "at least 1", "0")),
        ({"skip": ["("]}, ValueError, ("skip", "'('", "regular expression")),
        ({"skip": [".*"]}, ValueError, ("no layer to profile in Mlp", "matches skip")),
        ({"inverse": "qr"}, ValueError, ("inverse", "'qr'", "lapack, cholesky, newton-schulz")),
        ({"memory": 100}, MemoryError, ("layer layers.0", "raise the limit")),
        ({"net": nn.ReLU()}, ValueError, ("no layer to profile in ReLU", "no dense layer or convolution")),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(options, error, words, quick):
    with pytest.raises(error) as caught:
        measure(task(**options))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert quick[0] == 0
