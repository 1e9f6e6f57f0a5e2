"""Every command that builds something counts its memory first."""

import pytest

from tests.cli.helpers import SHORT, one_sentence


@pytest.mark.parametrize("command", ["evaluate", "watch", "quantize", "export"])
def test_loading_a_team_that_does_not_fit_into_memory_is_refused(finished_run, shoal, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 20_000)  # enough for the world
    code, out, err = shoal(command, finished_run)
    assert (code, out) == (2, "") and not any(tmp_path.iterdir())
    assert "A team of 3 agents with hidden layers of 8 units needs" in one_sentence(err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hidden 50000 50000", "An update of 3 agents needs"),
        ("--copies 1000000", "A world of 1,000,000 copies of 3 agents needs"),
        ("--capacity 1000000000 --episodes 100000000", "A ring for 1,000,000,000 transitions needs"),
        ("--env gym:Pendulum-v1 --copies 1000000", "--copies is 1,000,000, but gym:Pendulum-v1 is Python code"),
        ("--env pettingzoo:mpe2.simple_v3 --episode-length 1000000000", "Keeping the actions of an episode"),
    ],
)
def test_runs_that_do_not_fit_into_memory_are_refused(shoal, monkeypatch, tmp_path, words, said):
    monkeypatch.setattr("shoal.system.memory.free_memory", lambda: 10**9)
    code, out, err = shoal("train", *SHORT, *words.split(), "--out", tmp_path / "run")
    assert (code, out) == (2, "") and said in one_sentence(err)
    assert not (tmp_path / "run").exists()
