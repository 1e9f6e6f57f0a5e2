"""Counters count where the machine lets them; where not, a sentence says why."""

import errno
import os
import struct

import pytest

from shoal.profiling import counters
from shoal.profiling.counters import Counters, PhaseCounters


@pytest.fixture
def linux(monkeypatch):
    monkeypatch.setattr(counters.sys, "platform", "linux")
    monkeypatch.setattr(counters.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(counters, "_threads", lambda: [11, 12])


@pytest.mark.parametrize(
    "code, says",
    [
        (errno.ENOENT, "This machine has no such counter, as is common for virtual machines."),
        (errno.ENODEV, "no such counter"),
        (errno.EOPNOTSUPP, "no such counter"),
        (errno.EACCES, "perf_event_paranoid is 3, but must be 2 or less."),
        (errno.EPERM, "forbids perf_event_open."),
        (errno.ENOSYS, "This kernel has no perf_event_open."),
        (errno.EBUSY, "Another process"),
        (errno.EMFILE, "too many open files"),
        (errno.EINVAL, "perf_event_open failed: Invalid argument."),
    ],
)
def test_every_perf_error_is_explained(monkeypatch, linux, code, says):
    def refuse(number, attr, thread):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(counters, "perf_event_open", refuse)
    monkeypatch.setattr(counters, "read_text", lambda path: "3\n")
    refused = Counters()
    assert set(refused.reasons) == set(counters.EVENTS)
    assert all(says in sentence for sentence in refused.reasons.values())
    available, sentence = refused.available()
    assert not available
    assert sentence.count(says) == 1, "said once for all events"
    assert all(name in sentence for name in counters.EVENTS)
    assert refused.read() == {}


def test_counters_on_other_systems(monkeypatch):
    monkeypatch.setattr(counters.platform, "machine", lambda: "pdp11")
    monkeypatch.setattr(counters.sys, "platform", "linux")
    assert "on pdp11 is not known" in Counters().available()[1]
    monkeypatch.setattr(counters.sys, "platform", "darwin")
    assert "Only Linux has perf_event_open, and this is darwin." in Counters().available()[1]


def test_attributes_are_laid_out_as_the_kernel_wants_them():
    packed = counters.attributes(3, 0x10003)
    assert len(packed) == 64
    kind, size, config, period, sampled, read_format, bits = struct.unpack_from("=IIQQQQQ", packed)
    assert (kind, size, config, period, sampled, read_format) == (3, 64, 0x10003, 0, 0, 3)
    assert bits == 0b1100010, "inherit, exclude_kernel, exclude_hv; not disabled"
    assert counters.EVENTS["dTLB load misses"] == (3, 0x10003)
    assert counters.EVENTS["LL load misses"] == (3, 0x10002)


class FakeKernel:
    """Every open file counts 100 more at each reading; half of the time others had the counter."""

    def __init__(self, missing=()):
        self.missing, self.values, self.closed = missing, {}, []

    def open(self, number, attr, thread):
        config = struct.unpack_from("=Q", attr, 8)[0]
        if config in self.missing:
            raise OSError(errno.ENOENT, "no")
        file = 1000 + len(self.values)
        self.values[file] = 0
        return file

    def read(self, file, size):
        self.values[file] += 100
        return struct.pack("=QQQ", self.values[file], 2 * self.values[file], self.values[file])


@pytest.fixture
def kernel(monkeypatch, linux):
    fake = FakeKernel(missing=(0x10003,))
    monkeypatch.setattr(counters, "perf_event_open", fake.open)
    monkeypatch.setattr(counters.os, "read", fake.read)
    monkeypatch.setattr(counters.os, "close", fake.closed.append)
    return fake


def test_counts_of_all_threads_are_scaled_and_added(kernel):
    with Counters() as some:
        assert some.available() == (
            True,
            "Counted: instructions, cycles, cache misses, LL load misses. "
            "Not counted: dTLB load misses. This machine has no such counter, as is common for virtual machines.",
        )
        assert some.read() == dict.fromkeys(("instructions", "cycles", "cache misses", "LL load misses"), 400)
    assert sorted(kernel.closed) == sorted(kernel.values)


def test_an_event_that_was_never_counted_is_zero():
    assert counters._scaled(struct.pack("=QQQ", 0, 10, 0)) == 0


def test_partial_failure_closes_all_counters(monkeypatch, kernel):
    def one_thread_only(number, attr, thread):
        if thread == 12:
            raise OSError(errno.EMFILE, "no")
        return kernel.open(number, attr, thread)

    monkeypatch.setattr(counters, "perf_event_open", one_thread_only)
    assert not Counters({"cycles": (0, 0)}).available()[0]
    assert kernel.closed == list(kernel.values)


def test_ended_threads_are_skipped(monkeypatch, kernel):
    def one_has_ended(number, attr, thread):
        if thread == 12:
            raise OSError(errno.ESRCH, "no")
        return kernel.open(number, attr, thread)

    monkeypatch.setattr(counters, "perf_event_open", one_has_ended)
    assert Counters({"cycles": (0, 0)}).read() == {"cycles": 200}


def test_counts_belong_to_the_active_phase(kernel):
    clock = PhaseCounters(Counters({"cycles": (0, 0)}))
    for phase in ("target Q: next action", "target Q: target Q next", "Q loss", "target Q: next action"):
        clock(phase)
    by_phase = clock.counts_by_phase()
    assert by_phase == {"other": {"cycles": 400}, "target Q": {"cycles": 1200}, "Q loss": {"cycles": 400}}
    assert clock.counts["target Q: next action"] == {"cycles": 800}
    assert set(clock.seconds) == set(clock.counts)


def test_counters_work_or_explain_why_not():
    with Counters() as real:
        available, sentence = real.available()
        assert set(real.read()) | set(real.reasons) == set(counters.EVENTS)
        assert sentence.endswith(".")
        if available:
            before = real.read()
            sum(range(100_000))
            assert all(real.read()[name] >= before[name] for name in before)
        clock = PhaseCounters(real)
        clock("Q loss")
        assert set(clock.counts_by_phase()) == {"other", "Q loss"}
