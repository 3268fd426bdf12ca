"""The judgements of ``thor doctor``: pure functions from facts about a machine to findings, each with its cure.

The facts are gathered in :mod:`thor.cli.doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thor.cli.finding import Finding, Level
from thor.runtime import supported_versions

GIB = 2**30
MEMORY = (1 * GIB, 4 * GIB)  # bytes free: below the first nothing trains, below the second little does
DISK = (1 * GIB, 10 * GIB)  # bytes free for checkpoints
SKEW = (2.0, 60.0)  # seconds: checkpoints and logs are told apart by time, makefiles and tokens break beyond
FRESH = 900.0  # seconds that another host's mark in the shared folder counts


def versions(python: tuple[int, ...], mindspore: str, numpy: str) -> list[Finding]:
    """Versions of Python, MindSpore and NumPy that go together (:mod:`thor.runtime.supported_versions`)."""
    found = ".".join(map(str, python[:2]))
    release = supported_versions.release(mindspore)
    pythons = release.pythons if release else supported_versions.PYTHONS
    supported = ", ".join(each.version for each in supported_versions.RELEASES)
    findings = [
        Finding("python", "ok", found)
        if found in pythons
        else Finding(
            "python", "warn", f"{found}; supported are {', '.join(pythons)}",
            f"make a virtual environment with Python {pythons[-1]}",
        ),
        Finding("mindspore", "ok", mindspore)
        if release
        else Finding(
            "mindspore", "warn", f"{mindspore}; supported are {supported}",
            f"pip install mindspore=={supported_versions.RELEASES[-1].version}",
        ),
    ]  # fmt: skip
    major = numpy.split(".")[0]
    if major.isdecimal() and int(major) < 2:
        return [*findings, Finding("numpy", "ok", numpy)]
    cure = "pip install 'numpy<2': MindSpore 2.10 breaks with NumPy 2, though its metadata allows it"
    return [*findings, Finding("numpy", "fail", numpy, cure)]


def device(
    wanted: str, present: Sequence[str], tools: Mapping[str, str | None], environment: Mapping[str, str]
) -> Finding:
    """Whether MindSpore has the device that is wanted, and which of its software is found where it has not.

    Args:
        wanted: ``CPU``, ``GPU``, ``Ascend``, or ``auto`` for any.
        present: Devices that MindSpore can use here.
        tools: Paths of ``nvidia-smi``, ``nvcc`` and ``npu-smi``, None where there is none.
        environment: Where CUDA_HOME and ASCEND_HOME_PATH are looked for.
    """
    gpu = tools.get("nvidia-smi") is not None
    ascend = tools.get("npu-smi") is not None
    if wanted in present or (wanted == "auto" and (len(present) > 1 or not (gpu or ascend))):
        return Finding("device", "ok", f"MindSpore can use {', '.join(present)}")
    level: Level = "warn" if wanted == "auto" else "fail"
    if wanted == "Ascend" or (wanted == "auto" and ascend):
        if not ascend:
            return Finding("device", level, "no Ascend driver: npu-smi is not on PATH", "install the Ascend driver")
        if "ASCEND_HOME_PATH" not in environment:
            cure = "source CANN's set_env.sh, in /usr/local/Ascend/cann or /usr/local/Ascend/ascend-toolkit"
            return Finding("device", level, "driver there, CANN not visible: ASCEND_HOME_PATH is not set", cure)
        cure = "see what is said of cann and driver below"
        return Finding("device", level, "driver and CANN there, but MindSpore cannot use Ascend", cure)
    if not gpu:
        return Finding("device", level, "no NVIDIA driver: nvidia-smi is not on PATH", "install the NVIDIA driver")
    if tools.get("nvcc") is None and "CUDA_HOME" not in environment:
        cure = "install CUDA 11.6 with cuDNN 8, and set CUDA_HOME: MindSpore asks $CUDA_HOME/bin/nvcc for its version"
        return Finding("device", level, "driver there, CUDA not visible: no nvcc, and CUDA_HOME is not set", cure)
    cure = "use CUDA 11.1 or 11.6 with cuDNN 8: MindSpore carries plugins for these"
    return Finding("device", level, "driver and CUDA there, but MindSpore cannot use the GPU", cure)


def port(number: int, free: bool) -> Finding:
    """A port that a job's scheduler is to listen at."""
    if not 1024 <= number <= 65535:
        return Finding("port", "fail", f"{number} is none that a job may take", "give one of 1024 to 65535")
    if free:
        return Finding("port", "ok", f"{number} is free")
    cure = f"end what listens there (ss -ltnp 'sport = :{number}'), or give msrun another --master_port"
    return Finding("port", "fail", f"{number} is taken", cure)


def msrun(path: str | None, python: str | None, prefix: str, prefix_of_python: str | None) -> Finding:
    """Whether msrun, which starts a plain ``python``, would start this one.

    Args:
        path: Where msrun is, by PATH.
        python: Where ``python`` is, by PATH.
        prefix: Environment of this process.
        prefix_of_python: That of ``python``.
    """
    cure = f"put {prefix}/bin first on PATH (scripts/cluster/launch.py does so by itself)"
    if path is None:
        return Finding("msrun", "warn", "not on PATH", cure)
    if prefix_of_python != prefix:
        return Finding("msrun", "warn", f"it would start {python}, which is not of {prefix}", cure)
    return Finding("msrun", "ok", f"{path}, with {python}")


def memory(free: int) -> Finding:
    """Bytes of main memory that are free."""
    cure = "end other processes, or take a larger machine or container limit"
    return _amount("memory", free, MEMORY, "free", cure)


def disk(free: int, folder: str) -> Finding:
    """Bytes free where results go."""
    return _amount("disk", free, DISK, f"free in {folder}", "remove old runs and checkpoints, or choose another folder")


def _amount(name: str, free: int, limits: tuple[int, int], words: str, cure: str) -> Finding:
    text = f"{free / GIB:.1f} GiB {words}"
    if free >= limits[1]:
        return Finding(name, "ok", text)
    return Finding(name, "fail" if free < limits[0] else "warn", text, cure)


def instruction_set(flags: Sequence[str] | None, convolutions: str) -> Finding:
    """How fast oneDNN can be on this processor (see :mod:`thor.runtime.device`).

    Args:
        flags: The processor's, from /proc/cpuinfo; None where there is no such file.
        convolutions: What ``thor.runtime.device.convolution_path()`` returns.
    """
    if flags is None:
        return Finding("cpu", "warn", "instruction set not known: no /proc/cpuinfo", "none needed on a GPU or Ascend")
    if "avx512f" in flags:
        if convolutions == "patches":
            return Finding("cpu", "ok", "AVX-512; convolutions run as patches times weights, oneDNN's are slow here")
        cure = "unset DNNL_MAX_CPU_ISA and THOR_CONVOLUTION unless the network is all convolutions"
        return Finding("cpu", "warn", "AVX-512, but settings keep convolutions native and products slow", cure)
    if "avx2" in flags or "asimd" in flags:
        return Finding("cpu", "ok", "AVX2" if "avx2" in flags else "ARM with Advanced SIMD")
    return Finding("cpu", "warn", "no AVX2: oneDNN falls back to slow kernels", "train on another machine")


def cached_graphs(cached: bool) -> Finding:
    """MindSpore's cache of compiled graphs, which takes one network's graph for another's."""
    if not cached:
        return Finding("compile cache", "ok", "off")
    cure = "unset MS_COMPILER_CACHE_ENABLE: graphs are found by source files and order, and numbers may be wrong"
    return Finding("compile cache", "warn", "on", cure)


def shared_folder(path: str, error: str | None) -> Finding:
    """Whether the folder that all hosts share can be written to."""
    if error is None:
        return Finding("shared folder", "ok", f"{path} can be written to")
    return Finding("shared folder", "fail", f"{path}: {error}", "mount it, and let this user write to it")


def clock(skew: float) -> Finding:
    """Seconds between this host's clock and the time that the shared folder's server gives to a file."""
    text = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the shared folder's"
    if abs(skew) <= SKEW[0]:
        return Finding("clock", "ok", text)
    level: Level = "fail" if abs(skew) > SKEW[1] else "warn"
    return Finding("clock", level, text, "synchronise clocks on all hosts (chronyc tracking, timedatectl)")


def hosts(wanted: Sequence[str], marks: Mapping[str, float], now: float) -> list[Finding]:
    """Whether the other hosts see the same folder: each leaves a mark in it when ``thor doctor`` runs there.

    Args:
        wanted: Names of the hosts.
        marks: When each host has left its mark, in the folder's time.
        now: The folder's time.
    """
    findings = []
    for name in wanted:
        age = now - marks[name] if name in marks else None
        if age is not None and age <= FRESH:
            findings.append(Finding(f"host {name}", "ok", f"sees the same folder (mark {max(age, 0.0):.0f} s old)"))
        else:
            text = "has left no mark in the shared folder" if age is None else f"left its last mark {age:.0f} s ago"
            cure = f"run thor doctor with the same --shared on {name}, then here again"
            findings.append(Finding(f"host {name}", "warn", text, cure))
    return findings
