"""Processors are counted as this process may use them."""

import os

import pytest
from numba.core.registry import cpu_target

from shoal.errors import UserError
from shoal.system import processors
from shoal.system.processors import check_threads, has_vnni, usable_processors, vector_features


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_affinity_limits_processors(tmp_path):
    assert usable_processors(tmp_path) == 8


@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("1600000 100000", 8), ("", 8)],
)
def test_cgroup_v2_quota(tmp_path, quota, usable):
    write(tmp_path, {"proc/self/cgroup": "0::/user/run\n", "sys/fs/cgroup/user/run/cpu.max": f"{quota}\n"})
    assert usable_processors(tmp_path) == usable


def test_tightest_parent_cgroup_quota_applies(tmp_path):
    write(tmp_path, {"proc/self/cgroup": "0::/user/run\n", "sys/fs/cgroup/user/run/cpu.max": "400000 100000\n"})
    write(tmp_path, {"sys/fs/cgroup/user/cpu.max": "300000 100000\n"})
    assert usable_processors(tmp_path) == 3


@pytest.mark.parametrize(("quota", "usable"), [("-1", 8), ("250000", 3)])
def test_cgroup_v1_quota(tmp_path, quota, usable):
    write(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n"})
    write(
        tmp_path,
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": f"{quota}\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
    )
    assert usable_processors(tmp_path) == usable


def test_more_threads_than_processors_are_refused(monkeypatch):
    monkeypatch.setattr(processors, "usable_processors", lambda: 1)
    check_threads(1)
    with pytest.raises(UserError, match=r"^`threads` is 2, but this process may use 1 processor; choose at most 1\.$"):
        check_threads(2)
    with pytest.raises(UserError, match="`threads` is 0"):
        check_threads(0)


@pytest.mark.parametrize(
    ("machine", "features"),
    [
        (("x86_64-unknown-linux-gnu", "znver4", "+avx2,-avx512f,+fma"), {"avx2", "fma"}),
        (("aarch64-unknown-linux-gnu", "", "+neon"), {"arm64", "neon"}),
        (("arm64-apple-darwin23", "", ""), {"arm64"}),
    ],
)
def test_features_match_numba(monkeypatch, machine, features):
    monkeypatch.setattr(type(cpu_target.target_context.codegen()), "magic_tuple", lambda codegen: machine)
    vector_features.cache_clear()
    assert vector_features() == features
    vector_features.cache_clear()


def test_vnni_needs_vectors_of_256_bits():
    for features, has in (("avx2 avx5124vnniw", False), ("avx2 avx512vnni avx512vl", True), ("avxvnni", True)):
        assert has_vnni(set(features.split())) is has
