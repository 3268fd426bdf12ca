import os
import re
import subprocess
import sys
import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import thor
from tests.support.networks import Mlp, batch, make
from thor.runtime import device
from thor.runtime.convolution import PatchConv2d


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("THOR_CONVOLUTION", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cpu_alone(monkeypatch):
    """A machine with nothing but a CPU, whatever this one has."""
    monkeypatch.setattr(device, "_is_present", lambda target: target == "CPU")


@pytest.fixture
def chosen(monkeypatch):
    """Records what would be set, and sets nothing."""
    calls = []
    monkeypatch.setattr(device.ms, "set_device", calls.append)
    return calls


@pytest.mark.parametrize("name", ["CPU", "cpu", "auto"])
def test_a_cpu_is_selected(name, cpu_alone, chosen):
    assert device.select(name) == "CPU"
    assert chosen == ["CPU"]


@pytest.mark.parametrize(
    ("present", "best"), [(("CPU",), "CPU"), (("CPU", "GPU"), "GPU"), (("CPU", "GPU", "Ascend"), "Ascend")]
)
def test_auto_takes_the_best_device_present(present, best, monkeypatch, chosen):
    monkeypatch.setattr(device, "_is_present", lambda target: target in present)
    assert device.select() == best
    assert chosen == [best]


@pytest.mark.parametrize("name", ["GPU", "Ascend", "ascend"])
def test_a_device_that_is_not_there_is_refused_with_what_is_present(name, cpu_alone, chosen):
    with pytest.raises(ValueError, match=rf"(?i)device {name} is not available .*present: CPU.*device=auto"):
        device.select(name)
    assert not chosen


@pytest.mark.parametrize("name", ["TPU", "", None, 3])
def test_an_unknown_device_is_refused_with_name_and_what_is_allowed(name):
    with pytest.raises(ValueError, match="device must be one of CPU, GPU, Ascend or auto, but got"):
        device.select(name)


def test_a_device_that_does_not_start_is_a_clear_error(monkeypatch):
    def fail(name):
        raise RuntimeError("driver too old\nstack")

    monkeypatch.setattr(device, "_is_present", lambda target: True)
    monkeypatch.setattr(device.ms, "set_device", fail)
    with pytest.raises(ValueError, match="could not start device GPU: driver too old$"):
        device.select("GPU")


def test_a_probe_that_raises_means_not_present(monkeypatch):
    class Broken:
        @staticmethod
        def is_available():
            raise RuntimeError("no plugin")

    monkeypatch.setattr(device.ms.device_context, "gpu", Broken, raising=False)
    assert not device._is_present("GPU")
    assert device._is_present("CPU")


def test_to_look_for_devices_warns_of_none_that_nobody_asked_for():
    """A process of its own, for MindSpore's logger takes its level and its stream when it is imported."""
    look = "from thor import device; print(device.present(), device.select('auto'), device.current())"
    environment = {name: value for name, value in os.environ.items() if name != "GLOG_v"}
    job = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, env=environment, timeout=120)
    assert job.returncode == 0 and "CPU" in job.stdout
    assert "is not available" not in job.stderr and "loading plugin" not in job.stderr
    missing = next(name for name in ("Ascend", "GPU") if name not in device.present())
    asked = f"from thor import device; device.select({missing!r})"
    job = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, env=environment, timeout=120)
    assert f"device {missing} is not available to MindSpore" in job.stderr  # and MindSpore's own reason before
    assert f"Device {missing} is not available." in job.stderr


@pytest.mark.parametrize(("target", "quickly"), [("CPU", True), ("GPU", False), ("Ascend", False)])
def test_what_is_only_to_be_found_finite_is_squared_where_that_is_quick(target, quickly, monkeypatch):
    monkeypatch.setattr(device, "current", lambda: target)
    assert device.l2_loss_is_fast() == quickly


@pytest.mark.parametrize(
    ("target", "method"),
    [("CPU", "lapack"), ("GPU", "cholesky"), ("Ascend", "newton-schulz"), ("Other", "newton-schulz")],
)
def test_the_inverse_suits_the_target_and_can_be_asked_for(target, method, monkeypatch):
    monkeypatch.setattr(device, "current", lambda: target)
    assert device.inverse_method() == method
    assert device.inverse_method("cholesky") == "cholesky"
    with pytest.raises(
        ValueError, match="inverse must be one of lapack, cholesky, newton-schulz or None, but got 'qr'"
    ):
        device.inverse_method("qr")


@pytest.mark.parametrize(
    ("target", "avx512", "cap", "path"),
    [
        ("CPU", True, None, "patches"),
        ("CPU", True, "AVX2", "native"),
        ("CPU", True, "avx2", "native"),
        ("CPU", True, "AVX512_CORE", "patches"),
        ("CPU", True, "ALL", "patches"),
        ("CPU", False, None, "native"),
        ("GPU", True, None, "native"),
        ("Ascend", True, None, "native"),
    ],
)
@pytest.mark.parametrize("variable", ["DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"])
def test_convolutions_run_as_patches_only_where_the_native_kernel_is_slow(
    target, avx512, cap, path, variable, monkeypatch
):
    monkeypatch.setattr(device, "current", lambda: target)
    monkeypatch.setattr(device, "_has_avx512", lambda: avx512)
    monkeypatch.setattr(device, "_instruction_sets", lambda: None)  # it has not read its setting yet
    if cap:
        monkeypatch.setenv(variable, cap)
    assert device.convolution_path() == path


def test_the_environment_overrides_the_choice(monkeypatch):
    for asked in ("native", "patches", "PATCHES"):
        monkeypatch.setenv("THOR_CONVOLUTION", asked)
        assert device.convolution_path() == asked.lower()
    monkeypatch.setenv("THOR_CONVOLUTION", "fast")
    with pytest.raises(ValueError, match="THOR_CONVOLUTION must be one of native, patches, but got 'fast'"):
        device.convolution_path()


def test_the_cpus_flags_are_read_from_the_system(monkeypatch):
    device._has_avx512.cache_clear()
    for text, expected in (("flags : sse avx avx2 avx512f", True), ("flags : sse avx avx2", False)):
        monkeypatch.setattr(device.Path, "read_text", lambda *_, found=text, **__: found)
        assert device._has_avx512() is expected
        device._has_avx512.cache_clear()

    def missing(*_, **__):
        raise OSError

    monkeypatch.setattr(device.Path, "read_text", missing)
    assert device._has_avx512() is False
    device._has_avx512.cache_clear()


@pytest.mark.parametrize(
    ("in_effect", "path"), [(None, "native"), (0x7, "native"), (0x1F, "native"), (0x27, "patches"), (0x1EF, "patches")]
)
def test_an_instruction_set_setting_that_comes_too_late_warns_with_the_cure(in_effect, path, monkeypatch):
    monkeypatch.setattr(device, "current", lambda: "CPU")
    monkeypatch.setattr(device, "_has_avx512", lambda: True)
    monkeypatch.setattr(device, "_instruction_sets", lambda: in_effect)
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert device.convolution_path() == path
    late = "DNNL_MAX_CPU_ISA=AVX2 comes too late: .*patches.*DNNL_MAX_CPU_ISA=AVX2 python"
    assert [bool(re.match(late, str(w.message))) for w in caught] == [True] * (path == "patches")


IN_ITS_OWN_PROCESS = """
import os, sys
import numpy as np
import mindspore as ms
ms.set_device("CPU")
x = ms.Tensor(np.ones((4, 4), np.float32))
if sys.argv[1] == "late":
    ms.ops.matmul(x, x).asnumpy()
    os.environ["DNNL_MAX_CPU_ISA"] = "AVX2"
from thor import device
print(device.convolution_path())
"""


@pytest.mark.parametrize("when", ["in time", "late"])
def test_onednn_is_asked_what_it_took_up(when):
    """Where the processor has no AVX-512 there is nothing to cap: native, and no warning."""
    environment = os.environ | ({"DNNL_MAX_CPU_ISA": "AVX2"} if when == "in time" else {})
    job = subprocess.run([sys.executable, "-c", IN_ITS_OWN_PROCESS, when], capture_output=True, text=True,
                         env=environment, timeout=120, check=True)  # fmt: skip
    late = when == "late" and device._has_avx512()
    assert job.stdout.split()[-1] == ("patches" if late else "native")
    assert ("comes too late" in job.stderr) == late


@pytest.mark.parametrize(("path", "changed"), [("patches", 1), ("native", 0)])
def test_fast_convolutions_changes_a_plain_network_only_where_it_helps(path, changed, monkeypatch):
    monkeypatch.setenv("THOR_CONVOLUTION", path)
    net = nn.SequentialCell(nn.Conv2d(2, 2, 3), nn.ReLU())
    assert device.fast_convolutions(net) == changed
    assert (type(net[0]) is PatchConv2d) == bool(changed)
    assert thor.detach(net) == changed
    assert type(net[0]) is nn.Conv2d


def test_a_network_made_fast_first_is_captured_and_detached_to_its_beginning(monkeypatch):
    monkeypatch.setenv("THOR_CONVOLUTION", "patches")
    net = nn.SequentialCell(nn.Conv2d(2, 2, 3), nn.ReLU())
    x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32))
    native = net(x).asnumpy()
    device.fast_convolutions(net)
    optimizer = thor.THOR(net, 0.1, 0.1)
    assert [r.name for r in optimizer.layers] == ["0"]
    np.testing.assert_allclose(net(x).asnumpy(), native, rtol=1e-4, atol=1e-5)
    assert thor.detach(net) == 1
    assert type(net[0]) is nn.Conv2d
    np.testing.assert_array_equal(net(x).asnumpy(), native)


def test_the_current_target_is_mindspores():
    assert device.current() == ms.get_context("device_target")


@pytest.mark.parametrize("by", ["variable", "context"])
def test_a_cache_of_compiled_graphs_is_warned_of(by, monkeypatch):
    monkeypatch.delenv(device.CACHE_VARIABLE, raising=False)
    assert not device.caches_graphs()
    if by == "variable":
        monkeypatch.setenv(device.CACHE_VARIABLE, "1")
    else:
        monkeypatch.setattr(device.ms, "get_context", lambda name: name == "enable_compile_cache")
    with pytest.warns(UserWarning, match="compile cache is on .*turn it off"):
        thor.THOR(nn.Dense(3, 2), 0.1, 0.03)


def test_memory_is_given_back_before_each_graph_is_compiled(monkeypatch):
    trimmed = []
    monkeypatch.setattr(device, "trim_memory", lambda: trimmed.append(1))
    _, step = make(Mlp(), jit=True, interval=3)
    for seed in range(4):
        step(*batch(seed=seed))
    assert step.graphs == len(trimmed) == 4  # curvature, average, apply, plain


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_a_c_library_that_cannot_give_memory_back_keeps_it(error, monkeypatch):
    def refuse(_):
        raise error

    monkeypatch.setattr(device.ctypes, "CDLL", refuse)
    device.trim_memory()
