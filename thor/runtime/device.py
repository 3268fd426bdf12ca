"""Device targets: the only module that distinguishes Ascend, GPU and CPU.

It tells which target runs, how a convolution is computed there, which inverse suits it, and how deep a graph may be.
The rest of the package uses only operators that MindSpore documents for all three targets.

Convolutions on a CPU
    Under AVX-512, oneDNN has no fast float32 NCHW kernel and falls back to a reference loop, far slower than its AVX2
    kernel. ``DNNL_MAX_CPU_ISA=AVX2`` selects the AVX2 kernel, but slows down matrix products, must be set before the
    first operator runs, and holds for the entire process. Where the native kernel is slow, a convolution therefore
    runs as patches times weights, which needs no setting; elsewhere it stays native. The choice depends only on the
    machine, never on a timing, so that a run repeats bit for bit.
"""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import mindspore as ms

from thor.runtime.convolution import use_patches

try:
    import resource
except ImportError:  # Windows has no stack limit to raise
    resource = None  # type: ignore[assignment]

TARGETS = ("CPU", "GPU", "Ascend")
INVERSES = ("lapack", "cholesky", "newton-schulz")
CONVOLUTIONS = ("native", "patches")
CONVOLUTION_VARIABLE = "THOR_CONVOLUTION"

#: The fastest inverse on each target: LAPACK where tensors are in host memory (CPU), batched Cholesky where
#: ``ops.cholesky`` runs on the device (GPU), Newton-Schulz where only matrix products are fast (Ascend).
_INVERSE_OF_TARGET = {"CPU": "lapack", "GPU": "cholesky", "Ascend": "newton-schulz"}

#: Numbers of a tensor up to which a CPU copies it faster than it launches the kernels that stacking spares.
_QUICKLY_COPIED = 2**17

_RECURSION_LIMIT = 10_000
_STACK = 256 * 2**20

#: oneDNN instruction-set caps under which the native convolution is the fast AVX2 one.
_CAPS_BELOW_AVX512 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"}
_CAP_VARIABLES = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
_AVX512_BIT = 0x20  # of oneDNN's dnnl_cpu_isa_t: set in avx512_core and every later instruction set

#: Switches on MindSpore's compile cache, which tells graphs apart only by source files and order
#: (docs/dev/performance-log.md).
CACHE_VARIABLE = "MS_COMPILER_CACHE_ENABLE"


def _is_present(target: str) -> bool:
    if target == "CPU":
        return True
    probe = getattr(ms.device_context, target.lower(), None)
    try:
        return bool(probe and probe.is_available())
    except (RuntimeError, ValueError, AttributeError, OSError):
        return False  # MindSpore raises where a plugin is missing


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence MindSpore's warnings of missing devices while this module looks for the ones that are present."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def present() -> list[str]:
    """The targets that MindSpore can use on this machine."""
    with _without_warnings():
        return [name for name in TARGETS if _is_present(name)]


def select(target: str = "auto") -> str:
    """Set MindSpore's target and return its name.

    Args:
        target: ``"CPU"``, ``"GPU"``, ``"Ascend"``, or ``"auto"`` for the best one present.

    Raises:
        ValueError: the name is unknown, or the device is not available.
    """
    names = {name.lower(): name for name in (*TARGETS, "auto")}
    if not isinstance(target, str) or target.lower() not in names:
        raise ValueError(f"device must be one of {', '.join(TARGETS)} or auto, but got {target!r}")
    wanted = names[target.lower()]
    if wanted == "auto":
        with _without_warnings():
            wanted = next((name for name in ("Ascend", "GPU") if _is_present(name)), "CPU")
    elif not _is_present(wanted):
        raise ValueError(
            f"device {wanted} is not available to MindSpore {ms.__version__} here (present: {', '.join(present())}); "
            f"install its driver and plugin, or choose device=auto"
        )
    try:
        ms.set_device(wanted)
    except RuntimeError as error:
        raise ValueError(f"MindSpore could not start device {wanted}: {str(error).splitlines()[0]}") from error
    return wanted


def current() -> str:
    """The target MindSpore runs on: ``"CPU"``, ``"GPU"`` or ``"Ascend"``."""
    return str(ms.get_context("device_target"))


@contextmanager
def choosing_for(target: str) -> Iterator[None]:
    """Make this module's choices of operators those for another target, whose graphs can then be counted or checked."""
    before, _Choices.target = _Choices.target, target
    try:
        yield
    finally:
        _Choices.target = before


class _Choices:
    """The target that operators are chosen for; None for the one that MindSpore runs on."""

    target: str | None = None


def _chosen() -> str:
    return _Choices.target or current()


def allow_deep_graphs() -> None:
    """Let MindSpore compile steps of deep networks: raise its limit on nested calls and this process's stack limit.

    MindSpore's default of 1000 nested calls is too low for a network such as ResNet-50. The compiler recurses on the
    stack of this process, for which the usual limit of 8 MiB is then too small.
    """
    ms.set_recursion_limit(_RECURSION_LIMIT)
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < _STACK:
        room = _STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard)
        resource.setrlimit(resource.RLIMIT_STACK, (room, hard))


def trim_memory() -> None:
    """Return freed memory to the system, if the C library can: glibc keeps much of what a compilation has freed."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def l2_loss_is_fast() -> bool:
    """Whether L2Loss is fast: on a CPU. It is very slow on a GPU, and taken to be slow on Ascend."""
    return _chosen() == "CPU"


def spares_kernels() -> bool:
    """Whether steps spare kernels at the cost of some operations and copies, however large the tensors are.

    An accelerator waits for the launch of small kernels. A CPU, where a launch is cheap, waits for the operations.
    """
    return _chosen() != "CPU"


def stacks(numbers: int) -> bool:
    """Whether tensors of so many numbers are stacked, and worked on by as many kernels as one of them needs.

    Stacking copies. A CPU copies a small tensor faster than it launches the kernels that this spares.
    """
    return spares_kernels() or numbers <= _QUICKLY_COPIED


def operations_of_launches() -> int:
    """Floating-point operations that take as long as the launch of two or three kernels."""
    return 2_000_000_000 if spares_kernels() else 4_000_000


def runs_ahead() -> bool:
    """Whether a call returns before the device is done. On a CPU it returns when all is done."""
    return _chosen() != "CPU"


def leaves_host_idle() -> bool:
    """Whether the host's cores have nothing to do while a step runs."""
    return _chosen() != "CPU"


def supports_group_all_gather() -> bool:
    """Whether AllGather works within a group of some ranks. On a CPU it works only among all of them."""
    return current() != "CPU"


def inverse_method(requested: str | None = None) -> str:
    """The inverse that suits the current target, or ``requested`` if given and valid (else ValueError)."""
    if requested is None:
        return _INVERSE_OF_TARGET.get(current(), "newton-schulz")
    if requested not in INVERSES:
        raise ValueError(f"inverse must be one of {', '.join(INVERSES)} or None, but got {requested!r}")
    return requested


@lru_cache(maxsize=1)
def _has_avx512() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return False
    return "avx512f" in text


def convolution_path() -> str:
    """``"native"`` or ``"patches"``: how a convolution runs on the current target (see the module's docstring).

    The environment variable ``THOR_CONVOLUTION`` overrides the choice.
    """
    asked = os.environ.get(CONVOLUTION_VARIABLE, "").lower()
    if asked:
        if asked not in CONVOLUTIONS:
            raise ValueError(f"{CONVOLUTION_VARIABLE} must be one of {', '.join(CONVOLUTIONS)}, but got {asked!r}")
        return asked
    if _chosen() == "CPU" and _has_avx512() and not _capped():
        return "patches"
    return "native"


def _capped() -> bool:
    """Whether a setting keeps oneDNN below AVX-512. oneDNN reads the setting once; a later one is warned of."""
    name = next((name for name in _CAP_VARIABLES if os.environ.get(name)), None)
    if name is None or os.environ[name].upper() not in _CAPS_BELOW_AVX512:
        return False
    in_effect = _instruction_sets()
    if in_effect is None or not in_effect & _AVX512_BIT:
        return True
    warnings.warn(
        f"{name}={os.environ[name]} comes too late: MindSpore has already used oneDNN in this process. Convolutions "
        f"run as patches times weights instead, which need no setting; to have the setting, give it in the shell "
        f"({name}={os.environ[name]} python ...)",
        stacklevel=4,
    )
    return False


def _instruction_sets() -> int | None:
    """Bit mask of the instruction sets that oneDNN may use; None if it is not loaded or does not tell.

    The call fixes oneDNN's setting, as the first operator would.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="ignore").splitlines()
        path = next((line.split()[-1] for line in lines if "libdnnl" in line), None)
        return None if path is None else int(ctypes.CDLL(path).dnnl_get_effective_cpu_isa())
    except (OSError, AttributeError):
        return None


def fast_convolutions(net: ms.nn.Cell) -> int:
    """Make the network's ``nn.Conv2d`` layers fast on this target, in place; return the number changed.

    This is for networks trained with a first-order optimizer: THOR does the same for the layers that it captures.
    Names, values and checkpoints do not change. ``thor.detach(net)`` undoes it.
    """
    return use_patches(net) if convolution_path() == "patches" else 0


def caches_graphs() -> bool:
    """Whether MindSpore's compile cache is on, which keeps compiled graphs for later processes."""
    return os.environ.get(CACHE_VARIABLE) == "1" or bool(ms.get_context("enable_compile_cache"))


def warn_of_cached_graphs() -> None:
    """Warn if MindSpore's compile cache is on: it may silently run another network's graph, with wrong results."""
    if caches_graphs():
        warnings.warn(
            f"MindSpore's compile cache is on ({CACHE_VARIABLE}, or enable_compile_cache of its context): it finds "
            f"graphs by source files and the order of compiling, and may train with another network's; turn it off",
            stacklevel=3,
        )
