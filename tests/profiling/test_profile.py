"""`shoal profile`: cells are measured in turns, rows add up, and the figures follow from them."""

from dataclasses import asdict

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.profiling import rounds
from shoal.profiling.cells import Cell, Sweep
from shoal.profiling.footprint import footprint
from shoal.profiling.profile import Profile, profile
from shoal.profiling.records import EVENTS, growth_records, ratios, saving_records, time_record
from shoal.profiling.result import misses_table, profile_result, remarks, tables, time_table, without_constants
from shoal.profiling.rounds import Subject, Timing, changed, rows_that_fit
from shoal.results import Column, Table
from shoal.training.clock import PHASES, UPDATE_ALL_TRAINERS
from shoal.training.config import TrainConfig

TINY = {"batch": 64, "hidden": (8, 8)}
CACHES = tuple("L1=32K/8,L2=512K/8,L3=32M/16,line=64,dtlb=64/4,stlb=1536/12,page=4K".split(","))


@pytest.fixture(scope="module")
def found():
    """Two numbers of agents, both samplers, both implementations."""
    sweep = Sweep((2, 4), ring=1024, seconds=0.05, settings=TINY, caches=CACHES)
    said = []
    result = profile(sweep, lambda used, label: said.append((used, label)), in_this_process=True)
    assert sum(used for used, _ in said) == pytest.approx(sweep.total_seconds)
    assert any("reference" in label for _, label in said)
    return asdict(result)


def test_every_cell_has_a_row_whose_phases_add_up(found):
    cells = {(row["agents"], row["sampler"], row["implementation"]) for row in found["rows"]}
    assert len(found["rows"]) == len(cells) == 8
    for row in found["rows"]:
        assert set(row["phases_ms"]) == set(PHASES) and row["ring"] == 1024
        assert sum(row["shares_of_update"].values()) == pytest.approx(1)
        assert row["update_ms"] == pytest.approx(sum(row["phases_ms"][name] for name in UPDATE_ALL_TRAINERS))
        assert 0 < row["update_share_with_environment"] <= row["update_share"] < 1
        assert set(row["parts_ms"]) == {f"target Q: {part}" for part in ("next action", "target Q next", "target Q")}
        assert sum(row["parts_ms"].values()) == pytest.approx(row["phases_ms"]["target Q"])
        assert row["round_ms_low"] <= row["round_ms_high"]
        assert sum(row["phases_ms"].values()) == pytest.approx(row["round_ms"])


def test_too_few_rounds_are_marked_cut_short():
    cell = Cell("predator-prey", 3, "maddpg", "uniform", "engine")
    three = [dict.fromkeys(PHASES, 1.0)] * 3
    assert not Timing(cell, 10, three).cut_short
    assert Timing(cell, 10, three[:2]).cut_short
    assert Timing(cell, 10, three, scaled=[False, True, False]).cut_short


def test_slow_and_fast_cells_are_spread_over_the_same_time(monkeypatch):
    now, order = 0.0, []

    def one_round(subject, timing, seconds, counters):
        nonlocal now
        now += subject
        order.append(timing.cell.implementation[0])
        timing.rounds.append({})
        timing.scaled.append(False)

    monkeypatch.setattr(rounds, "one_round", one_round)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now)
    cells = [Cell("predator-prey", 3, "maddpg", "uniform", name) for name in ("slow", "fast")]
    told = []
    slow, fast = rounds.measure(cells, {"slow": 3.0, "fast": 1.0}, 10, 6.0, told.append)
    assert "".join(order) == "sf" + "sfffsfff"  # the first of each warms up
    assert (len(slow.rounds), len(fast.rounds)) == (2, 6)
    assert sum(told) == 12.0


def test_a_first_round_that_takes_all_the_time_counts(monkeypatch):
    now = 0.0

    def one_round(subject, timing, seconds, counters):
        nonlocal now
        now += subject
        timing.rounds.append({})
        timing.scaled.append(True)

    monkeypatch.setattr(rounds, "one_round", one_round)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now)
    cells = [Cell("predator-prey", 3, "maddpg", "uniform", name) for name in ("slow", "fast")]
    slow, fast = rounds.measure(cells, {"slow": 9.0, "fast": 1.0}, 10, 6.0, lambda used: None)
    assert (len(slow.rounds), len(fast.rounds)) == (1, 6)
    assert slow.cut_short


def test_energy_of_a_round_with_counters(monkeypatch):
    now, joules = 0.0, 0.0

    class Meter:
        def joules(self):
            nonlocal joules
            used, joules = joules, 0.0
            return used

    def one_round(subject, timing, seconds, counters):
        nonlocal now, joules
        now, joules = now + 1.0, joules + subject
        timing.rounds.append(dict.fromkeys(PHASES, 1.0))
        timing.scaled.append(False)

    monkeypatch.setattr(rounds, "EnergyMeter", Meter)
    monkeypatch.setattr(rounds, "one_round", one_round)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now)
    cells = [Cell("predator-prey", 3, "maddpg", "uniform", name) for name in ("slow", "fast")]
    timings = rounds.measure(cells, {"slow": 9.0, "fast": 2.0}, 10, 4.0, lambda used: None)
    rows = [time_record(timing) for timing in timings]
    assert [row["round_joules"] for row in rows] == [9.0, 2.0]
    assert [record["energy, J"] for record in time_table(rows).records()] == [9.0, 2.0]
    without = [{**row, "round_joules": None} for row in rows]
    assert "energy, J" not in time_table(without).records()[0]


def test_the_model_sees_more_misses_in_the_reference(found):
    by_cell = {(row["agents"], row["implementation"], row["sampler"]): row for row in found["misses"]}
    for agents in (2, 4):
        engine, reference = (by_cell[agents, name, "uniform"] for name in ("engine", "reference"))
        assert engine["minibatches"] == 1 and reference["minibatches"] == agents
        assert reference["l1"] > engine["l1"] and reference["bytes"] > engine["bytes"]
    grown = by_cell[4, "reference", "uniform"]
    assert grown["growth"]["l1"] == pytest.approx(grown["l1"] / by_cell[2, "reference", "uniform"]["l1"])
    assert by_cell[2, "engine", "uniform"]["growth"] is None


def test_reads_of_other_agents_policies_are_counted(found):
    for row in found["memory"]:
        agents = row["agents"]
        if row["implementation"] == "reference":
            assert row["policy_calls"] == agents**2 and row["policy_reads"] == agents * (agents - 1)
        else:
            assert row["policy_calls"] == agents and row["policy_reads"] == 0
        assert row["replay"] > 0 and row["networks"] > 0 and row["update_peak"] > 0


@pytest.mark.parametrize("variant", ["online", "tf2"])
def test_entropy_queries_are_not_counted_as_next_actions(variant):
    config = changed(TrainConfig(episodes=1000, implementation="reference"), agents=3, variant=variant, **TINY)
    taken = footprint(Subject(config, ("masac",), 1000).training)
    assert (taken.policy_calls, taken.policy_reads) == (9, 6)


def test_growth_and_savings_follow_from_the_rows(found):
    assert {row["agents"] for row in found["growth"]} == {"2 to 4"} and len(found["growth"]) == 4
    for row in found["neighbor"]:
        assert row["sampling_reduction"] == pytest.approx(1 - row["sampling_ms"] / row["uniform_sampling_ms"])
    assert len(found["neighbor"]) == 4


def made_row(agents, sampler, sampling, rest=100.0, environment=50.0):
    phases = dict.fromkeys(PHASES, 0.0) | {"environment": environment, "P loss": rest, "mini-batch sampling": sampling}
    cell = Cell("predator-prey", agents, "maddpg", sampler, "engine")
    return time_record(Timing(cell, 10, [{name: ms / 1e3 for name, ms in phases.items()}]))


def test_arithmetic_on_synthetic_times():
    uniform, neighbor = made_row(3, "uniform", 100.0), made_row(3, "neighbor", 75.0)
    assert uniform["update_share"] == pytest.approx(1) and uniform["update_share_with_environment"] == pytest.approx(
        0.8
    )
    (saved,) = saving_records([uniform, neighbor])
    assert saved["sampling_reduction"] == pytest.approx(0.25)
    assert saved["total_reduction"] == saved["total_reduction_by_sampling"] == pytest.approx(0.125)
    assert saved["total_reduction_with_environment"] == pytest.approx(0.1)
    double = made_row(6, "uniform", 300.0, 200.0)
    for row in (uniform, double):
        row["phases_ms"] |= dict.fromkeys(("action selection", "target Q", "Q loss", "target update"), 1.0)
    (grown,) = growth_records([uniform, double])
    assert grown["mini-batch sampling"] == pytest.approx(3) and grown["update all trainers"] == pytest.approx(2.5)


def test_cut_short_cells_have_a_star_in_every_table():
    row = made_row(3, "uniform", 100.0)
    (saved,) = saving_records([row, made_row(3, "neighbor", 75.0)])
    assert saved["cut_short"]  # one round
    found = Profile("", "", [row], neighbor=[saved])
    assert [table.records()[0]["agents"] for table in tables(found)] == ["3 *"] * 3
    assert any(remark.startswith("* cut short") for remark in remarks(found))
    assert all("* cut short" in figure.title for figure in profile_result(found).figures)
    assert [figure.panels[0].ticks for figure in profile_result(found).figures] == [["3*"]] * 3


def test_growth_from_zero_misses_has_no_ratio():
    fewer, more = dict.fromkeys(EVENTS, 2.0) | {"walks": 0.0}, dict.fromkeys(EVENTS, 5.0)
    grown = ratios(fewer, more)
    assert grown["l3"] == 2.5 and grown["walks"] is None
    row = {**more, "growth": grown, "agents": 6, "ring": 10, "minibatches": 1, "bytes": 1}
    (made,) = misses_table([row]).records()
    assert made["L3"] == "0.0 ×2.50" and made["walks"] == "0.0"


def test_constant_columns_are_stated_once(found):
    made = tables(Profile(**found))
    assert any("predator-prey" in table.title for table in made)
    assert all(column.name != "env" or column.unit for table in made for column in table.columns)
    env, x = Column("env"), Column("x")
    table = without_constants("T", [{env: "a", x: 1}, {env: "b", x: 1}])
    assert table == Table("T", [env, x], [["a", 1], ["b", 1]])


def test_a_subject_shares_its_ring_between_algorithms_and_samplers():
    config = changed(TrainConfig(episodes=1000), agents=2, env="predator-prey", **TINY)
    subject = Subject(config, ("maddpg", "masac"), 1000)
    first = subject.use("maddpg", "uniform")
    ring, team = first.ring, first.team
    second = subject.use("masac", "neighbor")
    assert second.ring is ring and len(ring) == 1000 and second.team is not team
    assert type(second.learner.sampler).__name__ == "Neighbor"
    second.update()
    assert subject.use("maddpg", "uniform").team is team


def test_filled_lists_share_their_observations():
    config = changed(TrainConfig(episodes=1000, implementation="reference"), agents=2, **TINY)
    replays = Subject(config, ("maddpg",), 100).training.ring
    assert len(replays) == 100 and replays.added == 100
    storage = replays.agents[0].storage
    assert all(storage[t][3] is storage[t + 1][0] for t in range(99))
    assert not np.array_equal(storage[0][0], storage[1][0])


def test_the_update_peak_counts_torch_and_numpy():
    config = changed(TrainConfig(episodes=1000, update="torch"), agents=2, **TINY)
    small, large = (
        footprint(Subject(changed(config, batch=batch), ("maddpg",), 1000).training).update_peak for batch in (64, 640)
    )
    assert 5 * small < large < 11 * small


def test_rings_are_as_large_as_memory_allows(monkeypatch):
    config = changed(TrainConfig(), agents=3, env="predator-prey")
    both = ("engine", "reference")
    monkeypatch.setattr("shoal.profiling.rounds.free_memory", lambda: 10**9)
    fewer = rows_that_fit(None, config, ("maddpg",), both)
    assert 1024 < fewer < 10**6 and rows_that_fit(5000, config, ("maddpg",), both) == 5000
    assert rows_that_fit(None, config, ("maddpg",), ("engine",)) > fewer
    with pytest.raises(UserError, match=rf"`ring` is 4,294,967,296, but .* room for {fewer:,} transitions in 1 GB"):
        rows_that_fit(2**32, config, ("maddpg",), both)
    monkeypatch.setattr("shoal.profiling.rounds.free_memory", lambda: 10**7)
    with pytest.raises(UserError, match="mini-batch has 1,024"):
        rows_that_fit(None, config, ("maddpg",), both)
    monkeypatch.setattr("shoal.profiling.rounds.free_memory", lambda: None)
    assert rows_that_fit(None, config, ("maddpg",), both) == 10**6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agents": ()}, "`agents` is empty"),
        ({"agents": (3, 3)}, "`agents` names something twice"),
        ({"agents": (0,)}, "`agents` is 0"),
        ({"env": ("chess",)}, "`env` 'chess'"),
        ({"sampler": ("lottery",)}, "`sampler` 'lottery'"),
        ({"implementation": ("jax",)}, "`implementation` 'jax'"),
        ({"algorithm": ("ppo",)}, "`algorithm` 'ppo'"),
        ({"ring": 5}, "`ring` is 5"),
        ({"seconds": 0}, "`seconds` is 0"),
        ({"threads": 0}, "`threads` is 0"),
        ({"caches": ("L3=lots",)}, "'L3=lots' in the cache sizes"),
        ({"sampler": ("neighbor-v1",), "implementation": ("engine",)}, "no sampler neighbor-v1"),
    ],
)
def test_unsupported_profiles_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Sweep(**settings).check()


def test_the_references_neighbor_is_not_measured_twice():
    def samplers(*asked):
        cells = Sweep((3,), sampler=asked).cells()
        return [(cell.implementation, cell.sampler) for cell in cells if cell.sampler != "uniform"]

    every = samplers("uniform", "neighbor", "neighbor-v1", "neighbor-v2")
    assert every == [("engine", "neighbor"), ("reference", "neighbor-v1"), ("reference", "neighbor-v2")]
    assert samplers("neighbor") == [("engine", "neighbor"), ("reference", "neighbor")]


def test_ctrl_c_keeps_finished_cells():
    def stop_at_the_second_group(used, label):
        if label.startswith("3 agents"):
            raise KeyboardInterrupt

    sweep = Sweep((2, 3), implementation=("engine",), ring=1024, seconds=0.05, settings=TINY)
    kept = []
    found = profile(sweep, stop_at_the_second_group, kept.append, in_this_process=True)
    assert kept == [found] and {row["agents"] for row in found.rows} == {2}
    assert found.interrupted and any("Interrupted" in remark for remark in remarks(found))
    with pytest.raises(KeyboardInterrupt):
        profile(Sweep((3,), settings=TINY), stop_at_the_second_group, in_this_process=True)


def test_profiles_that_do_not_fit_are_refused_at_the_start(monkeypatch):
    def free():
        return 10**9

    monkeypatch.setattr("shoal.profiling.rounds.free_memory", free)
    with pytest.raises(UserError, match="profile fewer `agents`"):
        profile(Sweep((2, 200), ring=1024, settings=TINY), lambda used, label: pytest.fail("measured"))
