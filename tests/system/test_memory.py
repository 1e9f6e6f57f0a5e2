"""Free memory is read from whatever the system tells, and sizes are said so that people can read them."""

import os

import pytest

from shoal.system import memory
from shoal.system.memory import free_memory, human_bytes


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  4000 kB\n"}


def test_available_memory_of_the_machine(tmp_path):
    write(tmp_path, MEMINFO)
    assert free_memory(tmp_path) == 4000 * 1024


def test_cgroup_v2_limit(tmp_path):
    write(tmp_path, MEMINFO)
    write(tmp_path, {"proc/self/cgroup": "0::/user/run\n"})
    group = "sys/fs/cgroup/user/run/memory."
    write(tmp_path, {group + "max": "3000000\n", group + "current": "1000000\n"})
    assert free_memory(tmp_path) == 2_000_000
    write(tmp_path, {group + "stat": "anon 5\ninactive_file 500000\n"})
    assert free_memory(tmp_path) == 2_500_000


def test_tightest_parent_cgroup_memory_limit_applies(tmp_path):
    write(tmp_path, MEMINFO)
    write(tmp_path, {"proc/self/cgroup": "0::/user/run\n"})
    write(tmp_path, {"sys/fs/cgroup/user/run/memory.max": "max\n", "sys/fs/cgroup/user/run/memory.current": "5\n"})
    write(tmp_path, {"sys/fs/cgroup/user/memory.max": "900\n", "sys/fs/cgroup/user/memory.current": "600\n"})
    assert free_memory(tmp_path) == 300
    write(tmp_path, {"sys/fs/cgroup/user/memory.current": "1600\n"})
    assert free_memory(tmp_path) == 0


@pytest.mark.parametrize("inside", ["", "docker/abc/"])
def test_cgroup_v1_limit_inside_and_outside_a_container(tmp_path, inside):
    write(tmp_path, MEMINFO)
    write(tmp_path, {"proc/self/cgroup": "7:cpu,memory:/docker/abc\n2:cpuset:/\n"})
    group = f"sys/fs/cgroup/memory/{inside}memory."
    write(tmp_path, {group + "limit_in_bytes": "3000\n", group + "usage_in_bytes": "1000\n"})
    write(tmp_path, {group + "stat": "inactive_file 3\ntotal_inactive_file 40\n"})
    assert free_memory(tmp_path) == 2040


def test_unlimited_cgroup(tmp_path):
    write(tmp_path, MEMINFO)
    write(tmp_path, {"proc/self/cgroup": "0::/\nnonsense\n"})
    write(tmp_path, {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "7\n"})
    assert free_memory(tmp_path) == 4000 * 1024


def test_memory_of_other_systems(tmp_path, monkeypatch):
    assert free_memory(tmp_path) == memory._physical()
    pages = {"SC_PHYS_PAGES": 12, "SC_PAGE_SIZE": 4096}

    def sysconf(name):
        if name not in pages:
            raise ValueError(name)
        return pages[name]

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert free_memory(tmp_path) == 12 * 4096
    monkeypatch.delattr(os, "sysconf")
    assert free_memory(tmp_path) is None


def test_this_machine_has_free_memory():
    free = free_memory()
    assert free is None or free > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (999_700, "1,000 kB"),
        (320_007_500, "320 MB"),
        (59_400_000_000, "59.4 GB"),
        (2 * 10**15, "2,000 TB"),
    ],
)
def test_sizes_are_readable(count, text):
    assert human_bytes(count) == text
