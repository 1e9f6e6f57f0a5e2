"""Tables of returns."""

import sys

import pytest

from shoal.commands.returns import print_returns


@pytest.fixture
def printed(monkeypatch, capsys):
    def call(returns, trained=True, controllers=None, **fields):
        monkeypatch.setattr("shoal.system.streams._out", sys.stdout)
        fields = {"agents": {}, "groups": {}, "figures": {}} | fields
        print_returns(returns, None, fields=fields, trained=trained, controllers=controllers)
        return capsys.readouterr().out

    return call


def side(mean):
    return {"deterministic": mean, "deterministic_ci95": 0.5, "random": -mean, "random_ci95": 0.25}


def test_returns_share_their_number_of_digits(printed):
    out = printed({"deterministic": (5.0, 1.0), "random": (-1012.875, None)})
    assert "    5.00 │ 4.00 to 6.00 " in out and "-1,012.88 │ –" in out
    assert "0.0310 │ 0.0280 to 0.0340" in printed({"deterministic": (0.031, 0.003), "random": (0.0, 0.0)})
    zero_sum = {"deterministic": (0.0, 0.0), "random": (0.0, 0.0)}
    assert "7.00 ± 0.50" in printed(zero_sum, groups={"red": side(7.0), "blue": side(-7.0)})


def test_groups_and_agents_of_small_teams_are_listed(printed):
    returns, teams = {"deterministic": (1.0, 0.5), "random": (2.0, 0.25)}, {"red": side(7.0), "blue": side(-7.0)}
    few = printed(returns, groups=teams, agents={f"red_{k}": side(7.0 + k) for k in range(12)})
    assert "by group and agent" in few and "group red" in few and "18.00 ± 0.50" in few and "-18.00 ± 0.25" in few
    many = printed(returns, groups=teams, agents={f"red_{k}": side(7.0 + k) for k in range(13)})
    assert "by group," in many and "group blue" in many and "red_0" not in many


def test_agents_of_one_group_are_listed_if_returns_differ(printed):
    returns, team = {"deterministic": (1.0, 0.5), "random": (2.0, 0.25)}, {"red": side(7.0)}
    apart = printed(returns, groups=team, agents={"red_0": side(6.0), "red_1": side(8.0)})
    assert "by agent," in apart and "8.00 ± 0.50" in apart and "group" not in apart
    for agents in ({"red_0": side(7.0), "red_1": side(7.0)}, {f"red_{k}": side(1.0 * k) for k in range(13)}):
        assert "red_0" not in printed(returns, groups=team, agents=agents)


def test_overlapping_intervals_point_to_the_advice(printed):
    alike = {"deterministic": (2.0, 0.5), "noisy": (9.0, 0.1), "random": (1.2, 0.4)}
    assert "overlap" in printed(alike) and "docs/advice.md" in printed(alike)
    for mean, ci in ((3.0, 0.5), (1.7, None), (1.2, float("nan")), (0.2, None)):
        assert "docs/advice.md" not in printed(alike | {"deterministic": (mean, ci)})
    assert "The trained team does worse than the random one: docs" in printed(alike | {"deterministic": (0.0, 0.5)})


def test_share_of_the_way_to_controllers(printed):
    returns = {
        "deterministic": (6.0, 0.5),
        "random": (2.0, 0.4),
        "chasers": (7.0, 0.5),
        "anticipating_chasers": (12.0, 1),
    }
    controllers = {"chasers": {"share": 0.8}, "anticipating_chasers": {"share": 0.4}, "third": {"share": None}}
    out = printed(returns, controllers=controllers)
    assert "anticipating chasers" in out and "6.50 to 7.50" in out
    way = "of the way from random to"
    assert f"The team is 80% {way} chasers, 40% {way} anticipating chasers.\n" in out
    assert way not in printed(returns, controllers={"chasers": {"share": -0.1}})
    assert way not in printed(returns, trained=False, controllers=controllers)


def test_mixed_team_has_learned_if_one_group_has(printed):
    returns, learned, not_learned = {"deterministic": (0.0, 0.1), "random": (0.0, 0.1)}, side(7.0), side(0.1)
    assert "overlap" not in printed(returns, groups={"red": learned, "blue": not_learned})
    assert "overlap" in printed(returns, groups={"red": not_learned, "blue": not_learned})


def test_a_team_without_updates_is_untrained(printed):
    out = printed({"deterministic": (1.0, 0.5), "noisy": (1.0, 0.5), "random": (1.0, 0.5)}, trained=False)
    assert "untrained, most likely actions" in out and "untrained, with training noise" in out and "overlap" not in out
