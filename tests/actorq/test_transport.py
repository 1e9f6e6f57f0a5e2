"""Shared memory, versions, chunks, payloads and the rate limiter, in one process and between two."""

import itertools
import multiprocessing
import os
import sys
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.actorq.broadcast import (
    BROADCAST_BITS,
    RecentStates,
    from_payload,
    numbers_of,
    split,
    states_for,
    states_in,
    to_payload,
    unpack,
    with_numbers,
)
from shoal.actorq.chunks import ChunkLayout, ChunkQueue
from shoal.actorq.limiter import RateLimiter, check_pace, least_buffer
from shoal.actorq.player import Play
from shoal.actorq.versions import Versions, checksum, copy_checked
from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError
from shoal.inference.correction import corrected
from shoal.inference.grid import encode, fields, pack, safe_bits
from shoal.inference.layers import Linear
from shoal.inference.policy import Head, Policy
from shoal.system.shared_memory import SharedMemory


def policy(agents=2, sizes=(5, 7, 3), seed=0):
    rng = np.random.default_rng(seed)
    layers = tuple(
        Linear(
            rng.normal(size=(agents, before, after)).astype(np.float32),
            rng.normal(size=(agents, after)).astype(np.float32),
            "relu",
        )
        for before, after in itertools.pairwise(sizes)
    )
    names = tuple(f"agent_{i}" for i in range(agents))
    return Policy(layers, Head("argmax"), (sizes[0],) * agents, (sizes[-1],) * agents, names)


def versions(size):
    writer = Versions(size)
    return writer, Versions(size, SharedMemory(writer.memory.size, os.dup(writer.memory.descriptor)))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 1599))
def test_a_checksum_sees_every_flipped_bit(content, bit):
    words = np.frombuffer(content.ljust(200, b"\0"), np.uint64).copy()
    target = np.zeros_like(words)
    found = copy_checked(words, target)
    assert (target == words).all() and found == checksum(words)
    target.view(np.uint8)[bit // 8] ^= 1 << bit % 8
    assert checksum(target) != found


def test_the_latest_version_is_pulled_once():
    writer, reader = versions(32)
    assert reader.pull() is None
    for k in range(1, 4):
        writer.publish(np.full(8 * k, k, np.uint8), 100 * k)
        found = reader.pull(k - 1)
        assert (found.number, found.version, found.payload.tolist()) == (k, 100 * k, [k] * 8 * k)
    assert reader.pull(3) is None
    writer.publish(np.zeros(8, np.uint8), 4)
    writer.publish(np.ones(8, np.uint8), 5)
    assert reader.pull(3).version == 5


def test_incomplete_or_damaged_versions_are_not_taken():
    writer, reader = versions(32)
    writer.publish(np.zeros(8, np.uint8), 1)
    writer._marks[1][0] = -1  # a writer that was killed in the middle
    assert reader.pull() is None and reader.refused == 1
    writer._marks[1][0] = 1
    writer._slots[1][0] ^= np.uint64(4)
    assert reader.pull() is None and reader.refused == 2
    writer._slots[1][0] ^= np.uint64(4)
    writer._marks[1][1] = 7  # another version than was published
    assert reader.pull() is None and reader.refused == 3
    writer.publish(np.zeros(8, np.uint8), 2)
    assert reader.pull().version == 2


def test_version_in_use_is_not_overwritten():
    writer, reader = versions(32)
    writer.publish(np.full(32, 1, np.uint8), 1)
    held = reader.pull().payload
    writer.publish(np.full(32, 2, np.uint8), 2)
    writer._slots[0][3] ^= np.uint64(4)
    assert reader.pull(1) is None and (held == 1).all()  # copied as far as it went, and refused
    writer.publish(np.full(32, 3, np.uint8), 3)
    assert (reader.pull(1).payload == 3).all() and (held == 1).all()


def test_no_reader_sees_half_a_version(request):
    """A writer that never waits beside a reader that looks all the time."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    size = 80_000
    writer, reader = versions(size)
    stop = threading.Event()

    def write():
        k = 0
        while not stop.is_set():
            k += 1
            writer.publish(np.full(size, k % 251, np.uint8), k)

    thread = threading.Thread(target=write)
    thread.start()
    seen, number = 0, 0
    while seen < 200:
        if (found := reader.pull(number)) is not None:
            seen, number = seen + 1, found.number
            assert (found.payload == found.version % 251).all()
    stop.set()
    thread.join()


SPEC = EnvSpec("world", ("agent_0", "agent_1"), (3, 3), (4, 4), True, metrics=("goals",))
LAYOUT = ChunkLayout(SPEC, copies=2, steps=5)


def queues(slots=2):
    actor = ChunkQueue(LAYOUT, slots)
    other = SharedMemory(actor.memory.size, os.dup(actor.memory.descriptor))
    return actor, ChunkQueue(LAYOUT, slots, other)


def random_step(rng):
    shape = (LAYOUT.copies, SPEC.agents)
    floats = [rng.random(size, np.float32) for size in ((*shape, 3), shape, (*shape, 3))]
    flags = [rng.random(size) < 0.5 for size in (shape, (2,), shape, (2,))]
    return Step(floats[0], floats[1], flags[0], flags[1], flags[2], flags[3], floats[2], rng.random((2, 1), np.float32))


def sent(queue, rng, steps=5, begins=False):
    chunk = queue.free()
    chunk.first[...], chunk.fresh[...] = rng.random(chunk.first.shape), True
    played = []
    for t in range(steps):
        actions, step = rng.random((2, 2, 4), np.float32), random_step(rng)
        chunk.put(t, actions, step, 10 + t)
        played.append((actions, step))
    queue.send(steps, begins)
    return played


def test_chunks_arrive_in_order():
    actor, learner = queues()
    rng = np.random.default_rng(0)
    assert learner.next() is None
    played = [sent(actor, rng, begins=True), sent(actor, rng, steps=2)]
    assert actor.free() is None and learner.waiting == 2
    for expected, begins in zip(played, (True, False), strict=True):
        chunk = learner.next()
        assert chunk.steps == len(expected) and chunk.begins == begins
        for t, (actions, step) in enumerate(expected):
            assert (chunk.actions[t] == actions).all() and chunk.version[t] == 10 + t
            assert all((one == other).all() for one, other in zip(chunk.step(t), step, strict=True))
        learner.done()
    assert learner.next() is None and actor.free() is not None


def test_damaged_chunk_is_refused_and_the_next_accepted():
    actor, learner = queues(3)
    rng = np.random.default_rng(0)
    for _ in range(3):
        sent(actor, rng)
    learner._words[1][3] ^= np.uint64(1)
    assert not learner.next().begins
    learner.done()
    assert learner.next().begins and learner.refused == 1
    learner.done()
    sent(actor, rng)
    assert not learner.next().begins


def test_checksum_covers_the_header():
    actor, learner = queues()
    sent(actor, np.random.default_rng(0), steps=4)
    learner._headers[0][1] = 3
    assert learner.next() is None and learner.refused == 1


@pytest.mark.parametrize("bits", BROADCAST_BITS)
def test_payloads(bits):
    subject = policy()
    numbers = numbers_of(subject)
    payload = to_payload(subject, numbers, bits)
    size = subject.parameters * bits // 8
    if bits <= 8:  # packed codes, then a scale and a bias for each output
        codes = [layer.weight.size for layer in subject.layers]
        widths = [8] if bits == 8 else fields(bits)
        size = sum(-(-count * width // 8) for count in codes for width in widths)
        size += sum(2 * layer.bias.nbytes for layer in subject.layers)
    assert payload.nbytes == -(-size // 8) * 8
    found = from_payload(subject, payload, bits)
    for (weight, bias), layer in zip(split(subject, found), subject.layers, strict=True):
        if bits == 32:
            expected = layer.weight
        elif bits == 16:
            expected = layer.weight.astype(np.float16).astype(np.float32)
        else:
            codes, grid = encode(layer.weight, bits)
            expected = codes * grid.scale
        assert (weight == expected).all()
        assert (bias == (layer.bias.astype(np.float16) if bits == 16 else layer.bias)).all()
    assert (numbers_of(with_numbers(subject, numbers)) == numbers).all()


@settings(deadline=None)
@given(st.integers(2, 7), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_unpack_is_the_inverse_of_pack(bits, count, seed):
    most = 2 ** (bits - 1) - 1
    codes = np.random.default_rng(seed).integers(-most, most + 1, count).astype(np.int8)
    packed = pack(codes, bits)
    assert len(packed) == len(fields(bits)) and (unpack(packed, count, bits) == codes).all()


def test_message_size_of_the_papers_network():
    """Everything counted: 3.9 times fewer bytes at 8 bits, 7.5 times at 4."""
    shapes = [(67, 2048), (2048, 2048), (2048, 2048), (2048, 21)]
    zeros = [
        Linear(np.broadcast_to(np.float32(0), (1, *shape)), np.zeros((1, shape[1]), np.float32)) for shape in shapes
    ]
    large = Policy(tuple(zeros), Head("argmax"), (67,), (21,), ("agent_0",))
    whole, eight, four = (to_payload(large, numbers_of(large), bits).nbytes for bits in (32, 8, 4))
    assert whole / eight >= 3.9 and whole / four >= 7.5


@settings(max_examples=200, deadline=None)
@given(st.floats(0.01, 64), st.integers(1, 300), st.integers(1, 100), st.integers(1, 2000), st.integers(0, 2**32 - 1))
def test_rate_limiter_never_deadlocks(ratio, batch, chunk, min_size, seed):
    """With the smallest buffer that is allowed, at any moment one of both sides may go on; the ratio is held."""
    limiter = RateLimiter(ratio, min_size, check_pace(ratio, None, batch, chunk, min_size, None, 10**6))
    limiter = RateLimiter(ratio, min_size, least_buffer(ratio, batch, chunk)) if seed % 2 else limiter
    rng = np.random.default_rng(seed)
    for _ in range(300):
        sides = [limiter.may_insert(chunk), limiter.may_sample(batch)]
        assert any(sides)
        if sides[0] and (not sides[1] or rng.random() < 0.5):
            limiter.inserts += chunk
        else:
            limiter.samples += batch
        if limiter.inserts >= min_size:
            diff = limiter.inserts * limiter.ratio - limiter.samples
            assert limiter.low - 1e-6 <= diff <= limiter.high + chunk * ratio + 1e-6


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_times": 8}, "`max_times_sampled=8` lets no row be drawn that often"),
        ({"error_buffer": 10.0}, "`error_buffer` is 10, but"),
        ({"min_size": 200}, "`warmup` is 200, but the replay ring of this run holds at most 100"),
    ],
)
def test_deadlocks_are_refused(settings, said):
    usual = {"error_buffer": None, "batch": 64, "chunk": 8, "min_size": 50, "max_times": None, "capacity": 100}
    with pytest.raises(UserError, match=said):
        check_pace(16.0, **(usual | settings))


def _child(descriptor, size):
    block = SharedMemory(size, descriptor)
    block.array(np.int64, (1,))[0] = 42


def test_memory_is_shared_by_its_descriptor():
    memory = SharedMemory(4096)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(memory.descriptor, 4096))
    process.start()
    process.join()
    assert memory.array(np.int64, (1,))[0] == 42


def test_shared_memory_that_does_not_fit_is_refused():
    with pytest.raises(UserError, match="Memory shared between processes"):
        SharedMemory(10**15)


@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("float32", 4)])
def test_payload_is_the_corrected_policy(precision, bits):
    one, play = policy(), Play("auto", precision, bits, 1, states=64)
    states = np.random.default_rng(1).normal(size=(64, 2, 5)).astype(np.float32)
    numbers = numbers_of(one)
    found, plain = play.payload(one, numbers, states), play.payload(one, numbers)
    fixed = corrected(one.network(), states, safe_bits() if play.codes else bits, by_rows=play.codes)
    assert np.array_equal(found, play.payload(one, numbers_of(fixed))) and not np.array_equal(found, plain)
    assert np.array_equal(plain, play.payload(one, numbers, states[:0]))  # none has come yet


def test_recent_states_are_sent_to_the_quantizer():
    spec = EnvSpec("toy", ("a", "b"), (3, 2), (2, 2), True)
    recent = RecentStates(5, spec)
    assert recent.row.nbytes % 8 == 0 and states_in(recent.row, (2, 3)).shape == (0, 2, 3)
    seen = np.arange(8 * 4 * 6, dtype=np.float32).reshape(8, 4, 2, 3)
    recent.add(seen[:2])  # of 8 states two
    assert np.array_equal(states_in(recent.row, (2, 3)), seen[:2, 0])
    recent.add(seen[2:])  # six more: the oldest go
    assert {float(state[0, 0]) for state in states_in(recent.row, (2, 3))} == {24.0 * k for k in range(3, 8)}
    assert RecentStates(0, spec).row.size == 0
    small, large = policy(), policy(1, (64, 2048, 2048, 2048, 8))
    assert states_for(small) == 256 and 8 <= states_for(large) < 64
