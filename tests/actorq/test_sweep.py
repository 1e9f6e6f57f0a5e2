"""Simulated runs over numbers of actors: where more of them stop helping, and what is said about it."""

import pytest

from shoal.actorq.simulation import ServiceTimes, Settings
from shoal.actorq.sweep import enough, findings, sweep, sweep_result
from shoal.errors import UserError
from shoal.results import Result

TIMES = {"float32": ServiceTimes(3, 2.0), "int8": ServiceTimes(3, 0.5)}
SETTINGS = Settings(TIMES["float32"], pull_every=100)
RATE = 256 / 16 / 3e-3
"""Steps per second that the learner takes in."""


def test_number_of_actors_at_saturation():
    done = []
    rows = sweep(TIMES, SETTINGS, (1, 2, 3, 8, 11, 14), lambda amount, doing: done.append(amount))
    assert len(rows) == 12 and sum(done) == 2 * 39
    assert enough(rows, "float32") == (11, pytest.approx(RATE, rel=0.01))
    assert enough(rows, "int8") == (3, pytest.approx(RATE, rel=0.01))
    assert [row["speed_up"] for row in rows[::2]] == [1.0] * 6
    assert rows[1]["speed_up"] == pytest.approx(4, rel=0.02) and rows[-1]["speed_up"] == pytest.approx(1, rel=0.02)
    wide, narrow, gain = findings(rows)
    assert wide.startswith("float32: more actors hardly help beyond 11; the learner limits at 5,3")
    assert (
        narrow.startswith("int8: more actors hardly help beyond 3;")
        and "4.00 times the env steps/s with 1 actor, 1.00 with" in gain
    )


def test_actors_below_saturation():
    rows = sweep(TIMES, SETTINGS, (1, 2))
    assert enough(rows, "float32") is None and enough(rows, "int8") is None and enough(rows, "int4") is None
    assert findings(sweep(TIMES, SETTINGS, (1,)))[-1].endswith("4.00 times the env steps/s with 1 actor.")
    assert findings(rows)[0] == "float32: with 2 actors it is still the actors’ side that limits."


def test_the_result_can_be_read_back():
    rows = sweep(TIMES, SETTINGS, (1, 4))
    found = sweep_result(rows, TIMES, SETTINGS, "made up")
    assert Result.from_json(found.to_json()) == found
    assert found.findings[0] == "Service times: made up." and found.tables[0].columns[1].heading == "learner, ms"
    assert [panel.ticks for panel in found.figures[0].panels] == [["1", "4"]] * 3


def test_numbers_of_actors_are_checked_before_simulating():
    with pytest.raises(UserError, match="`actors` is 0"):
        sweep(TIMES, SETTINGS, (1, 0), lambda amount, doing: pytest.fail("began"))
