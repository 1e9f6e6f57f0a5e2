"""`shoal simulate actorq`: plain, with times given or measured, as JSON and as a picture; wrong inputs."""

import json

import pytest

from shoal.actorq import service_times
from shoal.actorq.simulation import ServiceTimes
from tests.cli.helpers import one_sentence


def test_defaults_of_simulate(shoal):
    code, out, _ = shoal("simulate", "actorq")
    assert code == 0 and "GPU learner with 3 ms per update" in out and "Mbit/s" in out
    assert "int8: more actors hardly help beyond 4; the learner limits" in out


@pytest.mark.usefixtures("rendered")
def test_rows_and_picture(shoal, tmp_path):
    words = "simulate actorq --actors 1,4 --learner-ms 1 --step-ms 2.0,0.5 --insert-ms 0 --pull-ms 0 --load-ms 0 --json"
    code, out, _ = shoal(*words.split(), "--picture", tmp_path / "actors.png")
    found = json.loads(out)
    rows = {(row["actors"], row["precision"]): row for row in found["rows"]}
    assert code == 0 and len(rows) == 4 and found["settings"]["cores"] is None
    assert rows[4, "float32"]["env_steps_per_second"] == pytest.approx(2_000, rel=0.02)
    assert rows[4, "int8"]["speed_up"] == pytest.approx(4, rel=0.03)
    assert found["times"]["int8"]["learner_ms"] == 1 and "--learner-ms, --step-ms" in found["findings"][0]
    assert (tmp_path / "actors.png").stat().st_size > 5_000
    assert json.loads((tmp_path / "actors.json").read_text())["rows"] == found["rows"]
    assert json.loads(shoal(*words.split())[1])["rows"] == found["rows"]


def test_measured_times_share_this_machines_cores(shoal, monkeypatch):
    asked = []

    def measure(config, seconds):
        asked.append((config.env, config.actor_precision, config.hidden, seconds))
        return ServiceTimes(learner_ms=2, step_ms=1.0 if config.actor_precision == "float32" else 0.5)

    monkeypatch.setattr(service_times, "measure", measure)
    monkeypatch.setattr("shoal.system.processors.usable_processors", lambda: 3)
    words = (
        "simulate actorq --measure --env gym:CartPole-v1 --algorithm dqn --hidden 8 8 --seconds 0.5 --actors 8 --json"
    )
    code, out, _ = shoal(*words.split(), "--step-ms", "4,2", "--samples-per-insert", "1")
    found = json.loads(out)
    assert code == 0 and asked == [("gym:CartPole-v1", name, (8, 8), 0.5) for name in ("float32", "int8")]
    assert found["settings"]["cores"] == 3
    assert (found["times"]["float32"]["learner_ms"], found["times"]["int8"]["step_ms"]) == (2, 2)
    assert found["rows"][0]["env_steps_per_second"] == pytest.approx(3e3 / 4, rel=0.03)
    code, out, _ = shoal(*words.split(), "--network-mbit", "1000")
    assert json.loads(out)["settings"]["cores"] is None  # actors have their own machines


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "SYSTEM is missing"),
        ("fish", "'fish' is not one of 'actorq'"),
        ("actorq --actors 0", "--actors is 0, but must be from 1"),
        ("actorq --actors 4,-1", "--actors is -1"),
        ("actorq --actors four", "--actors 'four' is not a list of whole numbers"),
        ("actorq --actors=", "--actors is empty"),
        ("actorq --step-ms -2", "--step-ms is -2.0"),
        ("actorq --step-ms 0", "--step-ms is 0.0"),
        ("actorq --pull-ms nan", "--pull-ms is nan"),
        ("actorq --learner-ms 1,2,3", "--learner-ms is '1,2,3', but must be a number, or two"),
        ("actorq --load-ms quick", "--load-ms is 'quick'"),
        ("actorq --latency-ms nan", "--latency-ms is nan"),
        ("actorq --network-mbit 0", "--network-mbit is 0.0"),
        ("actorq --cores 0", "--cores is 0"),
        ("actorq --samples-per-insert 0", "--samples-per-insert is 0.0"),
        ("actorq --error-buffer 10", "learner and actors would wait for each other"),
        ("actorq --picture actors.gif", "must end in .png"),
        ("actorq --measure --env gym:Nothing-v0", "Nothing"),
        ("actorq --measure --algorithm ppo", "'ppo'"),
        ("actorq --measure --seconds 0", "--seconds is 0.0"),
    ],
)
def test_wrong_inputs_are_refused(shoal, words, sentence):
    code, out, err = shoal("simulate", *words.split())
    assert code == 2 and out == "" and sentence in one_sentence(err)
