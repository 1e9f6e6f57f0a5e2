"""Tables of returns."""

import sys

import pytest

from shoal.commands.returns import print_returns


@pytest.fixture
def printed(monkeypatch, capsys):
    def call(returns, **fields):
        monkeypatch.setattr("shoal.console._out", sys.stdout)
        fields = {"agents": {}, "groups": {}, "figures": {}} | fields
        print_returns(returns, None, fields=fields)
        return capsys.readouterr().out

    return call


def side(mean):
    return {"deterministic": mean, "deterministic_ci95": 0.5, "random": -mean, "random_ci95": 0.25}


def test_returns_have_as_many_digits_as_they_need_all_of_them_the_same(printed):
    out = printed({"deterministic": (5.0, 1.0), "random": (-1012.875, None)})
    assert "    5.00 │ 4.00 to 6.00 " in out and "-1,012.88 │ –" in out
    assert "0.0310 │ 0.0280 to 0.0340" in printed({"deterministic": (0.031, 0.003), "random": (0.0, 0.0)})
    zero_sum = {"deterministic": (0.0, 0.0), "random": (0.0, 0.0)}
    assert "7.00 ± 0.50" in printed(zero_sum, groups={"red": side(7.0), "blue": side(-7.0)})


def test_groups_are_listed_where_there_are_several_and_agents_of_small_teams(printed):
    returns, teams = {"deterministic": (1.0, 0.5), "random": (2.0, 0.25)}, {"red": side(7.0), "blue": side(-7.0)}
    few = printed(returns, groups=teams, agents={f"red_{k}": side(7.0 + k) for k in range(12)})
    assert "by group and agent" in few and "group red" in few and "18.00 ± 0.50" in few and "-18.00 ± 0.25" in few
    many = printed(returns, groups=teams, agents={f"red_{k}": side(7.0 + k) for k in range(13)})
    assert "by group," in many and "group blue" in many and "red_0" not in many


def test_agents_of_one_group_are_listed_where_their_returns_differ(printed):
    returns, team = {"deterministic": (1.0, 0.5), "random": (2.0, 0.25)}, {"red": side(7.0)}
    apart = printed(returns, groups=team, agents={"red_0": side(6.0), "red_1": side(8.0)})
    assert "by agent," in apart and "8.00 ± 0.50" in apart and "group" not in apart
    for agents in ({"red_0": side(7.0), "red_1": side(7.0)}, {f"red_{k}": side(1.0 * k) for k in range(13)}):
        assert "red_0" not in printed(returns, groups=team, agents=agents)
