"""The simulated system against analytic limits: whatever binds decides the rate, and the limiter holds its ratio."""

import heapq
from dataclasses import replace
from fractions import Fraction

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.actorq import simulation
from shoal.actorq.resources import Cores
from shoal.actorq.simulation import ServiceTimes, Settings, simulate
from shoal.errors import UserError

TIMES = ServiceTimes(
    learner_ms=3, step_ms=2, insert_ms=0.01, pull_ms=2, load_ms=1, quantize_ms=5, pull_bytes=1e6, transition_bytes=500
)
STEADY = Settings(TIMES, pull_every=100, variation=0)


def rate(**changes):
    return simulate(replace(STEADY, **changes)).env_steps_per_second


def close(value, rel=0.01):
    return pytest.approx(value, rel=rel)


@pytest.mark.parametrize(("ratio", "batch"), [(16, 256), (4, 64), (1, 256)])
def test_learner_as_bottleneck(ratio, batch):
    """Each insert costs the learner its share of updates and its own insertion."""
    times = replace(TIMES, learner_ms=30)
    found = simulate(replace(STEADY, times=times, actors=64, samples_per_insert=ratio, batch=batch))
    assert found.env_steps_per_second == close(1e3 / (30 * ratio / batch + 0.01))
    assert found.updates_per_second == close(found.env_steps_per_second * ratio / batch)
    assert found.bottleneck == "learner" and found.learner_stall < 0.01 < found.actor_stall


@pytest.mark.parametrize("actors", [1, 5])
@pytest.mark.parametrize("every", [100, 1000])
def test_actors_as_bottleneck(actors, every):
    """Each plays, and pulls what a version costs once in a while."""
    found = simulate(replace(STEADY, actors=actors, samples_per_insert=1, pull_every=every, batch=16))
    assert found.env_steps_per_second == close(actors * 1e3 / (2 + 3 / every))
    assert found.bottleneck == "actors" and found.actor_stall < 0.01 < found.learner_stall
    assert found.pull_share == close(3 / every / (2 + 3 / every), 0.1)
    assert found.down_bytes_per_second == close(found.env_steps_per_second / every * 1e6, 0.05)
    assert found.up_bytes_per_second == close(found.env_steps_per_second * 500)


def test_copies_of_the_world_are_stepped_together():
    assert rate(actors=1, copies=8, samples_per_insert=1) == close(8e3 / 2.03)


def test_downlink_as_bottleneck():
    """As many pulls as the link can carry, each worth `pull_every` steps."""
    found = simulate(replace(STEADY, actors=64, network_mbit=20, samples_per_insert=1))
    assert found.env_steps_per_second == close(20e6 / 8 / 1e6 * 100)
    assert found.bottleneck == "network" and found.down_bytes_per_second == close(20e6 / 8)


def test_uplink_as_bottleneck():
    times = replace(TIMES, pull_bytes=1)
    found = simulate(replace(STEADY, times=times, actors=64, network_mbit=1, samples_per_insert=1))
    assert found.env_steps_per_second == close(1e6 / 8 / 500) and found.bottleneck == "network"


def test_latency_counts_twice_per_pull():
    settings = {"actors": 1, "latency_ms": 50, "network_mbit": 80, "samples_per_insert": 8, "batch": 16}
    assert rate(**settings) == close(1e3 * 100 / (200 + 2 * 50 + 100 + 3))
    nothing_new = replace(TIMES, quantize_ms=1e9)  # asked for, but not sent
    found = simulate(replace(STEADY, times=nothing_new, **settings))
    assert found.env_steps_per_second == close(1e3 * 100 / (200 + 2 * 50)) and found.down_bytes_per_second == 0


@pytest.mark.parametrize("cores", [1, 2])
def test_cores_are_shared(cores):
    """All processes together get the cores' time: steps, pulls, insertion and the learner's updates."""
    found = simulate(replace(STEADY, actors=4, cores=cores, samples_per_insert=1, batch=64))
    versions = 5 * found.updates_per_second / found.env_steps_per_second  # nothing is passed over
    assert found.env_steps_per_second == close(cores * 1e3 / (2 + 0.03 + 0.01 + 3 / 64 + versions), 0.02)
    apart = simulate(replace(STEADY, actors=4, cores=cores, samples_per_insert=1, batch=64, latency_ms=1e-6))
    assert apart.env_steps_per_second == close(4e3 / 2.03)  # actors behind a network have cores of their own


@pytest.mark.parametrize("learner_ms", [0.5, 3, 20, 100])
def test_speed_up_of_int8(learner_ms):
    """max(A32, L) / max(A8, L), with the cost per insert A of all actors and L of the learner."""
    wide, narrow = (ServiceTimes(learner_ms, step_ms=step) for step in (2.0, 0.7))
    learner = 16 * learner_ms / 256
    expected = max(2.0 / 4, learner) / max(0.7 / 4, learner)
    assert rate(times=narrow) / rate(times=wide) == close(expected, 0.02)


def test_quantizer_skips_outdated_versions():
    """The lag is at least what the learner does in the time of a conversion, and pulls get what there is."""
    slow = replace(TIMES, quantize_ms=300, step_ms=0.1)
    found, quick = (simulate(replace(STEADY, times=times)) for times in (slow, replace(slow, quantize_ms=0)))
    assert found.lag_mean - quick.lag_mean == close(1.5 * 0.3 * found.updates_per_second, 0.25)
    assert found.down_bytes_per_second < 4 / 0.3 * 1e6  # each actor, once per version at most


def test_lag_follows_queue_length():
    """With the learner in no hurry the last chunk's update is the only one that an actor may not have yet."""
    times = ServiceTimes(learner_ms=1, step_ms=1)
    found = simulate(Settings(times, actors=1, samples_per_insert=1, batch=64, pull_every=64, variation=0))
    assert 0 <= found.lag_mean <= found.lag_p95 <= 1
    # limited by the learner: what it does until it has taken in all chunks in the slots, and those of the others
    times = ServiceTimes(learner_ms=100, step_ms=0.01)
    found = simulate(Settings(times, actors=8, samples_per_insert=1, batch=64, pull_every=64, variation=0))
    assert found.lag_p95 == close(8 * simulation.SLOTS, 0.3)


ANY = st.builds(
    Settings,
    times=st.builds(
        ServiceTimes,
        learner_ms=st.floats(0.1, 50), step_ms=st.floats(0.05, 5), insert_ms=st.floats(0, 0.1),
        pull_ms=st.floats(0, 5), load_ms=st.floats(0, 20), quantize_ms=st.floats(0, 50),
        pull_bytes=st.floats(1e3, 1e7), transition_bytes=st.floats(10, 1e3),
    ),
    actors=st.integers(1, 6),
    copies=st.sampled_from([1, 3]),
    batch=st.sampled_from([16, 256]),
    samples_per_insert=st.floats(0.5, 32),
    pull_every=st.sampled_from([20, 100, 700]),
    warmup=st.sampled_from([64, 1000]),
    cores=st.sampled_from([None, 1, 2, 5]),
    network_mbit=st.sampled_from([None, 10, 1000]),
    latency_ms=st.sampled_from([0, 20]),
    variation=st.sampled_from([0, 0.3]),
)  # fmt: skip


@given(ANY)
@settings(max_examples=8, deadline=None)
def test_simulation_conserves_samples_within_limits(setting):
    found = simulate(setting)
    times, ratio = setting.times, setting.samples_per_insert
    limiter = setting.limiter()
    inserts = found.env_steps_per_second * found.seconds
    assert abs(found.samples_per_insert - ratio) * inserts <= limiter.high - limiter.low + setting.batch + 1e-6
    for share in (found.learner_stall, found.actor_stall, found.pull_share):
        assert 0 <= share <= 1.05  # a wait that began before the part that counts is counted at its end
    slack = 1.1 + 5 * setting.variation + 2 * simulation.SLOTS * setting.actors / simulation.LEAST_CHUNKS
    assert found.env_steps_per_second <= slack * setting.actors * setting.copies * 1e3 / times.step_ms
    assert found.updates_per_second <= slack * 1e3 / times.learner_ms
    assert found.lag_mean >= 0 and found.bottleneck in ("learner", "actors", "network")


def test_simulation_depends_only_on_the_seed():
    varied = replace(STEADY, variation=0.3, actors=3, cores=2)
    assert simulate(varied) == simulate(varied)
    assert simulate(varied) != simulate(replace(varied, seed=1))


def test_a_thousand_actors():
    found = simulate(replace(STEADY, actors=1000, samples_per_insert=1))
    assert found.env_steps_per_second == close(1e3 / (3 / 256 + 0.01)) and found.actor_stall > 0.85


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_sharing_of_cores(jobs, cores):
    """Against all pieces one by one, in exact fractions: what each has left after every arrival and every end."""
    env = simpy.Environment()
    shared, ends = Cores(env, cores), {}

    def job(k, start, work):
        yield env.timeout(start)
        yield shared.work(work)
        ends[k] = env.now

    for k, (start, work) in enumerate(jobs):
        env.process(job(k, start, work))
    env.run()
    assert ends == {k: pytest.approx(float(end)) for k, end in plainly_shared(jobs, cores).items()}


def plainly_shared(jobs, cores):
    """When each of the jobs (start, work) ends."""
    coming = [(Fraction(start), k) for k, (start, _) in enumerate(jobs)]
    heapq.heapify(coming)
    now, left, ends = Fraction(0), {}, {}
    while coming or left:
        speed = min(Fraction(1), Fraction(cores, max(len(left), 1)))
        until = [coming[0][0] - now] if coming else []
        until += [min(left.values()) / speed] if left else []
        now += min(until)
        left = {k: rest - min(until) * speed for k, rest in left.items()}
        for k in [k for k, rest in left.items() if rest == 0]:
            ends[k] = now
            del left[k]
        while coming and coming[0][0] == now:
            k = heapq.heappop(coming)[1]
            left[k] = Fraction(jobs[k][1])
    return ends


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actors": 0}, "`actors` is 0"),
        ({"actors": 2.5}, "`actors` is 2.5, but must be a whole number"),
        ({"cores": 0}, "`cores` is 0"),
        ({"network_mbit": 0}, "`network_mbit` is 0"),
        ({"latency_ms": float("nan")}, "`latency_ms` is nan"),
        ({"samples_per_insert": 0}, "`samples_per_insert` is 0"),
        ({"times": replace(TIMES, step_ms=0)}, "`step_ms` is 0"),
        ({"times": replace(TIMES, learner_ms=-1)}, "`learner_ms` is -1"),
        ({"times": replace(TIMES, pull_ms=float("nan"))}, "`pull_ms` is nan"),
        ({"error_buffer": 1.0}, "learner and actors would wait for each other"),
    ],
)
def test_impossible_settings_are_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        simulate(replace(STEADY, **changes))
