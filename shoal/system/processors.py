"""Processors that this process may use, fewer than the machine has under `taskset` or in a container; features."""

import os
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

from shoal.errors import UserError, check_range, counted
from shoal.system.control_groups import group_folders, read_text


def usable_processors(root: Path = Path("/")) -> int:
    """Processors of this process's affinity, or fewer where its control group has a smaller quota; at least 1.

    `root` is the folder of /proc and /sys.
    """
    return max(1, min([affinity(), *_quotas(root)]))


def affinity() -> int:
    """Processors that the system may run this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name(root: Path = Path("/")) -> tuple[str, str]:
    """Name and vendor of the processor. `root` is where /proc is looked for."""
    text = read_text(root / "proc/cpuinfo")
    name, vendor = (re.search(rf"^{key}[ \t]*:(.*)", text, re.MULTILINE) for key in ("model name", "vendor_id"))
    return name[1].strip() if name else "unknown", vendor[1].strip() if vendor else ""


@cache
def vector_features() -> frozenset[str]:
    """Features of the processor that numba compiles for, by LLVM's names, such as "avx2"; any ARM64 has "arm64"."""
    from numba.core.registry import cpu_target  # slow to import

    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    names = {name[1:] for name in features.split(",") if name.startswith("+")}
    return frozenset(names | {"arm64"} if triple.startswith(("aarch64", "arm64")) else names)


def has_vnni(features: Set[str] | None = None) -> bool:
    """Whether the processor adds products of 8-bit numbers up in 32 bits by one instruction; others saturate at 16."""
    features = vector_features() if features is None else features
    return "avxvnni" in features or {"avx512vnni", "avx512vl"} <= features


def check_threads(threads: int) -> None:
    """Refuse more threads than there are processors to run them: they would only wait for each other."""
    check_range("threads", threads, 1)
    if threads > (most := usable_processors()):
        processors = counted(most, "processor")
        raise UserError(f"`threads` is {threads}, but this process may use {processors}; choose at most {most}.")


def _quotas(root: Path) -> Iterator[int]:
    """Whole processors' worth of time that each control group allows, rounded up."""
    for version, folder in group_folders("cpu", root):
        if version == 2:
            words = read_text(folder / "cpu.max").split()
        else:
            words = [read_text(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
        if len(words) == 2 and all(map(str.isdecimal, words)):  # no quota is `max`, -1 or no file
            quota, period = map(int, words)
            if quota and period:
                yield -(-quota // period)
