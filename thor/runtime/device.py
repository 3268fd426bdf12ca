"""The only module that knows Ascend, GPU and CPU apart.

It answers which target runs, how a convolution is computed there, which inverse suits it, and how deep a graph may be.
Everything else in the package is written once, with operators that MindSpore documents for all three targets.

Convolutions on a CPU
    oneDNN has no fast float32 NCHW kernel under AVX-512 and falls back to a reference loop, thirty times slower than
    its AVX2 kernel. ``DNNL_MAX_CPU_ISA=AVX2`` cures that, but halves the speed of matrix products, must be set before
    the first operator runs, and is one setting for the whole process. So where the native kernel is slow, a
    convolution runs as patches times weights, which needs no setting at all; everywhere else it stays native.
    The choice depends on the machine alone, never on a timing, so that a run repeats bit for bit.
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

try:
    import resource
except ImportError:  # Windows has no such limit to raise
    resource = None  # type: ignore[assignment]

TARGETS = ("CPU", "GPU", "Ascend")
INVERSES = ("lapack", "cholesky", "newton-schulz")
CONVOLUTIONS = ("native", "patches")
CONVOLUTION_VARIABLE = "THOR_CONVOLUTION"

#: What inverts a damped block best: LAPACK on the host where the tensors are there already, batched Cholesky where
#: ``ops.cholesky`` exists (GPU, CPU), matrix products alone where only they are fast (Ascend).
_INVERSE_OF_TARGET = {"CPU": "lapack", "GPU": "cholesky", "Ascend": "newton-schulz"}

_RECURSION_LIMIT = 10_000
_STACK = 256 * 2**20

#: oneDNN instruction-set caps under which the native convolution is the fast AVX2 one.
_CAPS_BELOW_AVX512 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"}
_CAP_VARIABLES = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
_AVX512_BIT = 0x20  # of dnnl_cpu_isa_t, in every set from avx512_core on

#: MindSpore's cache of compiled graphs, found again by source files and order alone (docs/speed.md).
CACHE_VARIABLE = "MS_COMPILER_CACHE_ENABLE"


def _is_present(target: str) -> bool:
    if target == "CPU":
        return True
    probe = getattr(ms.device_context, target.lower(), None)
    try:
        return bool(probe and probe.is_available())
    except (RuntimeError, ValueError, AttributeError, OSError):
        return False  # MindSpore raises where a plugin is missing instead of answering


@contextmanager
def _unwarned() -> Iterator[None]:
    """MindSpore warns of each device that is asked for and is not there; nobody has asked for this one."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def present() -> list[str]:
    """The targets that MindSpore can use here."""
    with _unwarned():
        return [name for name in TARGETS if _is_present(name)]


def select(target: str = "auto") -> str:
    """Set MindSpore's target and return its name.

    Args:
        target: ``"CPU"``, ``"GPU"``, ``"Ascend"``, or ``"auto"`` for the best one present.

    Raises:
        ValueError: an unknown name, or a device that is not there.
    """
    names = {name.lower(): name for name in (*TARGETS, "auto")}
    if not isinstance(target, str) or target.lower() not in names:
        raise ValueError(f"device must be one of {', '.join(TARGETS)} or auto, but got {target!r}")
    wanted = names[target.lower()]
    if wanted == "auto":
        with _unwarned():
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


def allow_deep_graphs() -> None:
    """Let MindSpore's compiler follow as many nested calls as a step over 54 layers takes; its own limit is 1000.

    It follows them on the stack of this process, which the system lets grow to 8 MiB unless it is told otherwise.
    """
    ms.set_recursion_limit(_RECURSION_LIMIT)
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < _STACK:
        room = _STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard)
        resource.setrlimit(resource.RLIMIT_STACK, (room, hard))


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc): it keeps tens of MiB for every graph."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def squares_quickly() -> bool:
    """Whether L2Loss is quick: on a CPU it is, on a GPU very slow (MindSpore 2.10); on Ascend nobody measured it."""
    return current() == "CPU"


def gathers_in_groups() -> bool:
    """Whether AllGather works among some of the ranks. A CPU's knows all of them only (MindSpore 2.10)."""
    return current() != "CPU"


def inverse_method(requested: str | None = None) -> str:
    """The inverse that suits the current target, or the one asked for, checked."""
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
    """``"native"`` or ``"patches"``: how a convolution runs on the current target (see the module's text).

    The environment variable ``THOR_CONVOLUTION`` overrides the choice.
    """
    asked = os.environ.get(CONVOLUTION_VARIABLE, "").lower()
    if asked:
        if asked not in CONVOLUTIONS:
            raise ValueError(f"{CONVOLUTION_VARIABLE} must be one of {', '.join(CONVOLUTIONS)}, but got {asked!r}")
        return asked
    if current() == "CPU" and _has_avx512() and not _capped():
        return "patches"
    return "native"


def _capped() -> bool:
    """Whether oneDNN keeps below AVX-512. It reads its setting once; one that came after that is warned of."""
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
    """What oneDNN itself says that it may use, one bit a set; None where MindSpore has not loaded it, or another one.

    Asking fixes the setting, as the first operator would.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="ignore").splitlines()
        path = next((line.split()[-1] for line in lines if "libdnnl" in line), None)
        return None if path is None else int(ctypes.CDLL(path).dnnl_get_effective_cpu_isa())
    except (OSError, AttributeError):
        return None


def fast_convolutions(net: ms.nn.Cell) -> int:
    """Make the network's ``nn.Conv2d`` layers fast on this target, in place; returns how many were changed.

    For a network trained with a first-order optimizer; layers captured by THOR are served already. Names, values and
    checkpoints stay as they are, and ``thor.detach(net)`` undoes it.
    """
    from thor.runtime.convolution import use_patches  # device.py sits at the bottom of the import order

    return use_patches(net) if convolution_path() == "patches" else 0


def caches_graphs() -> bool:
    """Whether MindSpore is to keep compiled graphs from one process for the next."""
    return os.environ.get(CACHE_VARIABLE) == "1" or bool(ms.get_context("enable_compile_cache"))


def warn_of_cached_graphs() -> None:
    """A kept graph is taken for another network's without a word, and its numbers are wrong."""
    if caches_graphs():
        warnings.warn(
            f"MindSpore's compile cache is on ({CACHE_VARIABLE}, or enable_compile_cache of its context): it finds "
            f"graphs by source files and the order of compiling, and may train with another network's; turn it off",
            stacklevel=3,
        )
