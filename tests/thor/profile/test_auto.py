"""THOR(block_size="auto"): a profile of the first batch, kept for the next run; and a profile's file as a plan."""

import json
import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import thor
from tests.support.networks import Mixed, Mlp, batch, images, make, squared_error, values
from tests.support.profiles import profile as plain_profile
from tests.support.profiles import timing
from thor import BlockPlan
from thor.capture.targets import find_targets
from thor.profile import auto
from thor.profile.profile_file import Profile
from thor.runtime import convolution, device

pytestmark = pytest.mark.usefixtures("quick", "cache")
SIZES = (20, 18, 3)  # larger than the candidate 16, so that the choice cuts something


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv(auto.CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def measured(monkeypatch):
    """The profiles that were measured; each is turned so that 16 is chosen, whatever this machine's times are."""
    found = []
    real = auto.measure

    def counted(*arguments, **options):
        profile = real(*arguments, **options)
        for curves in (profile.calls, profile.blocks):
            for dim in profile.dims:
                curves[dim] = timing(0.1 if dim > 16 else 1e-3)
        for factor in profile.factors:
            factor.loss = {"channel": [0.5] + [0.0] * (len(profile.dims) - 1)}
        found.append(profile)
        return profile

    monkeypatch.setattr(auto, "measure", counted)
    return found


def run(step, batches):
    return [float(step(*each).asnumpy()) for each in batches]


def batches(count=4):
    return [batch(inputs=SIZES[0], seed=seed) for seed in range(count)]


def same(one, other):
    ours, theirs = values(one), values(other)
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize(
    ("mode", "options", "cut_inputs"),
    [
        (ms.PYNATIVE_MODE, {"interval": 2}, [(2, 10), (2, 9)]),  # the bias apart
        (ms.GRAPH_MODE, {"jit": True, "loss_scale": 4.0, "split": "block+rank", "rank": 2}, [(2, 11), (2, 10)]),
    ],
)
def test_training_goes_on_as_with_the_chosen_size_from_the_start(mode, options, cut_inputs, measured, capfd):
    ms.set_context(mode=mode)
    settings = {"momentum": 0.9, "factor_decay": 0.9} | options
    net, twin = Mlp(SIZES), Mlp(SIZES)
    optimizer, step = make(net, block_size="auto", **settings)
    losses = run(step, batches(3))
    assert len(measured) == 1
    assert "choosing the block size" in capfd.readouterr().err
    given, given_step = make(twin, block_size=16, **settings)
    assert losses == run(given_step, batches(3))
    same(net, twin)
    same(optimizer, given)
    assert optimizer.options.plan == given.options.plan == BlockPlan(
        block_size=16, split=settings.get("split", "block+mean"), rank=settings.get("rank", 16)
    )  # fmt: skip
    assert [r.blocks for r in optimizer.layers] == list(zip(cut_inputs, [(2, 9), (1, 3)], strict=True))


def test_eigenbases_are_timed_for_a_run_of_eigenbases(measured, cache):
    """The profile of inverses is another file."""
    net, twin = Mlp(SIZES), Mlp(SIZES)
    optimizer, given = thor.THOR(net, 1e-3, block_size="auto"), thor.THOR(twin, 1e-3, block_size=16)
    steps = [thor.TrainStep(each, squared_error, made) for each, made in ((net, optimizer), (twin, given))]
    assert run(steps[0], batches(3)) == run(steps[1], batches(3))
    same(optimizer, given)
    assert [profile.environment["inverse"] for profile in measured] == ["eigh"]
    _, step = make(Mlp(SIZES), block_size="auto")
    run(step, batches(1))
    assert len(measured) == len(list(cache.iterdir())) == 2


def test_accumulated_steps_profile_the_first_micro_batch(measured):
    net, twin = Mlp(SIZES), Mlp(SIZES)
    optimizer, step = make(net, block_size="auto", accumulate=2)
    given, given_step = make(twin, block_size=16, accumulate=2)
    assert run(step, batches()) == run(given_step, batches())
    assert len(measured) == 1 and optimizer.step == 2
    same(net, twin)
    same(step, given_step)


@pytest.mark.parametrize("ahead", [False, True])
def test_two_steps_of_one_optimizer_have_the_size_that_the_first_one_chose(measured, ahead, monkeypatch):
    """Also on a device that has not finished the first one's last step when the second one begins."""
    monkeypatch.setattr(device, "runs_ahead", lambda: ahead)
    net = Mlp(SIZES)
    optimizer = thor.THOR(net, 1e-3, block_size="auto", interval=500)
    steps = [thor.TrainStep(net, squared_error, optimizer) for _ in range(2)]
    losses = [run(step, batches(2)) for step in steps]
    assert len(measured) == 1 and optimizer.step == 4 and losses[1][-1] < losses[0][0]
    assert optimizer.options.plan.block_size == 16 and len(optimizer.layers) == 2


def test_it_measures_no_network_that_another_optimizer_trains_too(measured):
    net = Mlp(SIZES)
    first, second = (layer.weight for layer in net.layers)
    thor.THOR(net, 1e-3, params=[first])
    step = thor.TrainStep(net, squared_error, thor.THOR(net, 1e-3, params=[second], block_size="auto"))
    with pytest.raises(
        ValueError, match="layer layers.0 belongs to another THOR: give this one a number as block_size"
    ):
        run(step, batches(1))
    assert not measured


def test_the_next_run_takes_the_kept_profile(measured, cache, caplog):
    caplog.set_level("INFO", logger="thor")
    _, step = make(Mlp(SIZES), block_size="auto")
    run(step, batches(1))
    (path,) = cache.iterdir()
    assert Profile.load(path) == measured[0]
    assert f"profile kept in {path}" in caplog.text
    caplog.clear()
    optimizer, step = make(Mlp(SIZES, seed=3), block_size="auto", split="block")
    assert optimizer.options.plan == BlockPlan(block_size=16, split="block")  # known before the first step
    assert re.search(r"block size 16 \((crossing at \d+|no crossing)", caplog.text)
    run(step, batches(1))
    assert len(measured) == 1
    _, step = make(Mlp((20, 17, 3)), block_size="auto")  # other shapes: another file
    run(step, batches(1))
    assert len(measured) == len(list(cache.iterdir())) == 2


def test_the_cache_is_kept_by_device_version_inverse_and_shapes(monkeypatch, tmp_path):
    def path(net=None, method="lapack"):
        return auto.cache_file(find_targets(net or Mlp())[0], method)

    first = path()
    assert first == path(Mlp(seed=9)) and first.name.startswith("profile-cpu-")
    others = {path(Mlp((5, 4, 4))), path(method="cholesky"), path(Mixed())}
    monkeypatch.setattr(auto.ms, "__version__", "9.9")
    others.add(path())
    assert len(others | {first}) == 5
    monkeypatch.delenv(auto.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert auto.cache_folder() == tmp_path / "xdg" / "thor"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert auto.cache_folder() == tmp_path / ".cache" / "thor"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", None])
def test_a_kept_profile_that_cannot_be_used_is_measured_again_with_a_warning(content, cache, caplog):
    path = cache / "profile.json"
    if content is None:
        path.mkdir(parents=True)
    else:
        cache.mkdir()
        path.write_bytes(content)
    with caplog.at_level("WARNING", logger="thor"):
        assert auto.cached(path) is None
    assert "the kept profile cannot be used, the first step measures again" in caplog.text and str(path) in caplog.text
    assert auto.cached(cache / "missing.json") is None


def test_a_corrupt_cache_is_replaced_and_an_unwritable_one_only_warns(measured, cache, caplog, monkeypatch):
    net = Mlp(SIZES)
    path = auto.cache_file(find_targets(net)[0], thor.device.inverse_method())
    cache.mkdir()
    path.write_text('{"format": "thor-profile", "vers')
    _, step = make(net, block_size="auto")
    assert "corrupt or truncated" in caplog.text
    run(step, batches(1))
    assert Profile.load(path) == measured[0]
    (cache / "file").write_text("in the way")
    monkeypatch.setenv(auto.CACHE_VARIABLE, str(cache / "file" / "below"))
    caplog.clear()
    optimizer, step = make(Mlp(SIZES), block_size="auto")
    run(step, batches(2))
    assert optimizer.step == 2 and len(measured) == 2
    assert "the profile cannot be kept in" in caplog.text and "the next run measures again" in caplog.text


@pytest.mark.parametrize("path", ["native", "patches"])
def test_convolutions_skipped_layers_and_modes_stay_as_they_were(path, measured, monkeypatch):
    """Layers that are skipped, frozen or not optimized are not profiled; a frozen BatchNorm stays frozen."""
    monkeypatch.setenv("THOR_CONVOLUTION", path)
    net, twin = Mixed(), Mixed()
    made = []
    for each, size in ((net, "auto"), (twin, 16)):
        optimizer, step = make(each, block_size=size, skip=["depthwise"])
        each.norm.set_train(False)
        x, y = images()
        made.append([float(step(x, y).asnumpy()) for _ in range(2)])
        assert [r.name for r in optimizer.layers] == ["conv", "dense"]
        assert not each.norm.training
    assert made[0] == made[1]
    same(net, twin)
    assert measured[0].settings["layers"] == ["conv", "dense"]


def test_a_failed_profile_leaves_a_step_that_can_be_taken_again(measured):
    """A first batch whose loss is not finite: the error says so, and the next batch chooses."""
    net = Mlp(SIZES)
    net.unused = nn.Conv2d(2, 2, 3)  # skipped, and run as patches by the user's wish
    convolution.use_patches(net)
    optimizer, step = make(net, block_size="auto", skip=["unused"])
    x, y = batch(inputs=SIZES[0])
    before = values(net)
    with pytest.raises(FloatingPointError, match="loss of batch 0 is (nan|inf): nothing can be profiled"):
        step(x * np.inf, y)
    assert all(np.array_equal(value, before[name]) for name, value in values(net).items())
    assert type(net.unused) is convolution.PatchConv2d
    step(x, y)
    assert optimizer.step == 1 and optimizer.options.plan.block_size == 16
    assert type(net.unused) is convolution.PatchConv2d


def test_a_checkpoint_is_not_loaded_before_the_size_is_chosen_and_resumes_once_it_is(measured, cache, tmp_path):
    """The choice begins anew and would lose the state without a word; a kept profile leaves nothing to choose."""
    net = Mlp(SIZES)
    optimizer, step = make(net, block_size=BlockPlan())
    run(step, batches(1))
    ms.save_checkpoint(optimizer, str(tmp_path / "o.ckpt"))
    waiting, _ = make(Mlp(SIZES), block_size="auto")
    with pytest.raises(ValueError, match="block_size='auto' has not chosen a block size yet.*take one step.*128"):
        ms.load_param_into_net(waiting, ms.load_checkpoint(str(tmp_path / "o.ckpt")))

    net, twin = Mlp(SIZES), Mlp(SIZES, seed=1)
    optimizer, step = make(net, block_size="auto", interval=2)
    run(step, batches(2))
    for kind, cell in enumerate((net, optimizer)):
        ms.save_checkpoint(cell, str(tmp_path / f"{kind}.ckpt"))
    resumed, resumed_step = make(twin, block_size="auto", interval=2)
    for kind, cell in enumerate((twin, resumed)):
        ms.load_param_into_net(cell, ms.load_checkpoint(str(tmp_path / f"{kind}.ckpt")))
    assert run(step, batches(3)) == run(resumed_step, batches(3))
    same(optimizer, resumed)


def with_two_labels(output, target, weight):
    return squared_error(output, target) * weight.mean()


def with_output(output, target):
    return squared_error(output, target), output


@pytest.mark.parametrize("how", ["two labels", "aux", "a loop of one's own"])
def test_any_loss_can_be_profiled(how, measured):
    """The size is chosen on the loss of training, and training is that with the size from the start."""

    def trained(block_size):
        net = Mlp(SIZES)
        optimizer = thor.THOR(net, 0.05, 0.1, block_size=block_size)
        if how == "two labels":
            step = thor.TrainStep(net, with_two_labels, optimizer)
            losses = [step(x, y, ms.Tensor(np.full(3, 0.5, np.float32))) for x, y in batches(3)]
        elif how == "aux":
            step = thor.TrainStep(net, with_output, optimizer, has_aux=True)
            assert step.messages == {}
            losses = [step(*each)[0] for each in batches(3)]
        else:

            def forward(x, y):
                return squared_error(net(x), y)

            grad_fn, losses = thor.value_and_grad(forward, optimizer), []
            for each in batches(3):
                loss, gradients = grad_fn(*each)
                optimizer(gradients)
                losses.append(loss)
        return [float(loss) for loss in losses], optimizer.options.plan.block_size

    chosen = trained("auto")
    assert len(measured) == 1 and chosen[1] == 16
    assert trained(16) == chosen


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_the_path_of_a_profile_is_a_plan(form, tmp_path):
    made = plain_profile()
    made.save(tmp_path / "profile.json")
    optimizer, _ = make(Mlp(SIZES), block_size=form(tmp_path / "profile.json"), split="block", rank=3)
    assert optimizer.options.plan == BlockPlan(block_size=made.crossing().chosen, split="block", rank=3)


def test_a_path_that_is_no_profile_is_refused_with_what_block_size_may_be(tmp_path):
    part = plain_profile(complete=False)
    part.save(tmp_path / "part.json")
    newer = json.loads((tmp_path / "part.json").read_text()) | {"version": 99}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    for name, words in (
        ("missing.json", ("no such profile", "thor profile")), ("part.json", ("interrupted",)),
        ("newer.json", ("newer",)), ("", ("cannot be read",)),
    ):  # fmt: skip
        net = Mlp()
        path = str(tmp_path / name)
        with pytest.raises(ValueError) as caught:
            make(net, block_size=path)
        message = str(caught.value)
        assert all(word in message for word in (repr(path), "'auto'", "thor.BlockPlan", *words)), message
    with pytest.raises(TypeError, match="block_size must be an int of at least 1, 'auto', the path of a profile"):
        make(Mlp(), block_size=None)
