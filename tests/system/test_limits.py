"""Limits of a shell on its processes: what they leave, and commands that could not even start under them."""

import os
import resource
import sys

import pytest

from shoal import cli
from shoal.errors import UserError
from shoal.system.memory import (
    LEAST_LEFT,
    LIMITS,
    check_fits,
    check_limits,
    free_memory,
    limits_left,
    ran_out_of_memory,
)
from shoal.system.processes import ARENA_MAX, keep_freed_memory, live_within_limits

UNLIMITED = resource.RLIM_INFINITY
STATUS = "VmPeak:\t 900000 kB\nVmSize:\t 800000 kB\nVmData:\t 300000 kB\n"


@pytest.fixture
def limited(monkeypatch):
    """Set limits in bytes for what asks for them, without any effect on this process."""

    def limit(space=UNLIMITED, data=UNLIMITED, stack=8 * 2**20, processors=2):
        kinds = {resource.RLIMIT_AS: space, resource.RLIMIT_DATA: data, resource.RLIMIT_STACK: stack}
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (kinds[kind], UNLIMITED))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))

    limit()
    return limit


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(STATUS)
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 40000000 kB\n")
    return tmp_path


def test_memory_left_by_limits(limited, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    space, data = (limit.with_torch for limit in LIMITS)
    assert limits_left(root) is None and free_memory(root) == 40_000_000 * 1024
    limited(space=3 * 10**9)
    assert limits_left(root) == free_memory(root) == 3 * 10**9 - space  # though not all of it is taken yet
    limited(space=3 * 10**9, data=10**9)
    assert limits_left(root) == 10**9 - data
    limited(space=10**9)
    assert limits_left(root) == 0
    (root / "proc/self/status").write_text("VmSize: 2000000 kB")
    limited(space=3 * 10**9)
    assert limits_left(root) == 3 * 10**9 - 2_000_000 * 1024
    monkeypatch.delitem(sys.modules, "torch")
    (root / "proc/self/status").write_text(STATUS)
    assert limits_left(root) == 3 * 10**9 - 800_000 * 1024


def test_threads_need_stacks(limited, root):
    (root / "proc/self/status").write_text("VmSize: 1 kB")
    limited(space=4 * 10**9)
    two = limits_left(root)
    limited(space=4 * 10**9, processors=66)
    assert limits_left(root) == two - 2 * 64 * 8 * 2**20
    limited(space=4 * 10**9, processors=66, stack=UNLIMITED)
    assert limits_left(root) == two - 2 * 64 * 2 * 2**20


def test_systems_without_limits(limited, tmp_path):
    limited(space=10**9)
    assert limits_left(tmp_path) is None


def test_exceeding_a_limit_is_reported(limited):
    limited(space=1)
    with pytest.raises(UserError, match=r"only 0 bytes of memory is free within this process's limits \(ulimit\)"):
        check_fits("A ring", 10, lambda usable: "make it smaller")


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.option)
def test_too_low_limit_is_refused(limited, limit):
    name = {"ulimit -v": "space", "ulimit -d": "data"}[limit.option]
    for torch, needed in ((True, limit.with_torch), (False, limit.without_torch)):
        needed += LEAST_LEFT
        limited(**{name: needed + 1024})
        check_limits(torch)
        limited(**{name: needed - 1024})
        with pytest.raises(UserError, match=rf"kB of {limit.name} \({limit.option}\), but needs at least .* to start"):
            check_limits(torch)
    limited(**{name: limit.with_torch + LEAST_LEFT + 1024}, processors=64)
    with pytest.raises(UserError, match="but needs at least"):
        check_limits(torch=True)


def test_libraries_keep_nothing_for_threads_under_a_limit(limited, monkeypatch):
    for name in ("OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    called = []
    library = type("Library", (), {"mallopt": lambda *values: called.append(values[1:])})
    monkeypatch.setattr("ctypes.CDLL", lambda name: library())
    live_within_limits()
    assert "OPENBLAS_NUM_THREADS" not in os.environ and not called
    limited(data=10**9)
    live_within_limits()
    assert os.environ["OPENBLAS_NUM_THREADS"] == os.environ["MALLOC_ARENA_MAX"] == "1"
    assert called == [(ARENA_MAX, 1)]


def test_heap_is_released_under_low_limits(limited, monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail("the heap was padded"))
    limited(space=10**9)
    keep_freed_memory()


def test_commands_refuse_to_start_under_low_limits(limited, shoal):
    limited(space=10**9)
    code, out, err = shoal("train", "--episodes", 60)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("shoal: This process may take 976,562 kB of address space (ulimit -v), but needs at least")
    code, _, err = shoal("evaluate", "none.onnx")
    assert code == 2 and "There is no" in err and "'none.onnx'" in err  # less is enough without torch
    with pytest.raises(SystemExit) as stop:
        shoal("train", "--help")
    assert stop.value.code == 0


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ImportError("No module named 'chess'"), False),
    ],
    ids=str,
)
def test_errors_about_memory(error, is_memory, monkeypatch, shoal):
    assert ran_out_of_memory(error) == is_memory

    def fail(argv):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "train", fail)
    if is_memory:
        code, _, err = shoal("train")
        assert code == 2 and err.startswith("shoal: There is not enough memory") and err.count("\n") == 1
    else:
        with pytest.raises(type(error)):
            shoal("train")
