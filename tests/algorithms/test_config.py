"""Settings that differ by algorithm."""

import pytest

from shoal import TrainConfig
from shoal.algorithms import LearnConfig
from shoal.errors import UserError


def test_defaults_are_the_papers_settings():
    for algorithm in ("maddpg", "masac"):
        config = LearnConfig(algorithm=algorithm)
        assert (config.hidden, config.learning_rate, config.discount, config.tau) == ((64, 64), 0.01, 0.95, 0.01)
        assert (config.batch, config.warmup, config.update_every, config.clip) == (1024, 25_600, 100, 0.5)
        assert (config.clip_by, config.target_period, config.n_step, config.atoms) == ("variable", 1, 1, None)
    config = LearnConfig(algorithm="d4pg")
    assert (config.atoms, config.n_step, config.discount, config.batch) == (51, 5, 0.99, 256)
    assert (config.learning_rate, config.target_period, config.tau) == (1e-4, 100, 1.0)


def test_given_settings_are_kept():
    config = TrainConfig(algorithm="d4pg", hidden=(8,), n_step=1, atoms=11).checked()
    assert (config.hidden, config.n_step, config.atoms, config.batch) == ((8,), 1, 11, 256)
    assert config == config.checked()


@pytest.mark.parametrize(
    ("given", "tau", "period"),
    [
        ({}, 1.0, 100),
        ({"tau": 0.01}, 0.01, 1),
        ({"target_period": 7}, 1.0, 7),
        ({"tau": 0.5, "target_period": 7}, 0.5, 7),
    ],
    ids=str,
)
def test_target_period_and_soft_updates(given, tau, period):
    config = LearnConfig(algorithm="dqn", **given)
    assert (config.tau, config.target_period) == (tau, period)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"atoms": 51}, "`atoms` is a setting of d4pg, but `algorithm` is maddpg"),
        ({"algorithm": "d4pg", "epsilon": 0.1}, "`epsilon` is a setting of dqn, but `algorithm` is d4pg"),
        ({"algorithm": "d4pg", "v_min": 1.0, "v_max": 1.0}, "`v_min` is 1.0, but must be below `v_max`"),
        ({"algorithm": "d4pg", "v_max": 1e39}, r"`v_max` is 1e\+39, but must be from -1e\+30 to 1e\+30"),
        ({"algorithm": "d4pg", "v_min": float("nan")}, "`v_min` is nan, but must be a finite number"),
        ({"algorithm": "d4pg", "v_min": 1e9, "v_max": 1e9 + 1}, "too narrow for `atoms=51`: float32 cannot"),
        ({"algorithm": "d4pg", "v_min": 0.0, "v_max": 1e-320}, "too narrow for `atoms=51`: float32 cannot"),
        ({"algorithm": "d4pg", "atoms": 1}, "`atoms` is 1, but must be from 2"),
        ({"algorithm": "dqn", "critic_hidden": (8,)}, "settings of critics, which dqn does not have"),
        ({"algorithm": "dqn", "layer_norm": True}, "settings of critics, which dqn does not have"),
        ({"algorithm": "dqn", "critic": "pooled"}, "`critic` is a setting of maddpg, but `algorithm` is dqn"),
        ({"critic": "pooled", "critic_hidden": (8,)}, "`critic` is pooled, which needs two hidden layers or more"),
        ({"critic": "pooled", "layer_norm": True}, "`layer_norm` is for critics that see all agents side by side"),
        ({"implementation": "reference", "critic": "pooled"}, "`critic=pooled` needs `implementation=engine`"),
        ({"algorithm": "dqn", "epsilon": 1.5}, "`epsilon` is 1.5"),
        ({"algorithm": "masac", "n_step": 2}, "`n_step` is 2, but masac bootstraps after every step"),
        ({"n_step": 0}, "`n_step` is 0"),
        ({"target_period": 0}, "`target_period` is 0"),
        ({"critic_hidden": ()}, "`critic_hidden` is"),
        ({"implementation": "reference", "algorithm": "dqn"}, "`algorithm=dqn` needs `implementation=engine`"),
        ({"implementation": "reference", "n_step": 3}, "`n_step` needs `implementation=engine`"),
        ({"implementation": "reference", "normalize_rewards": True}, "`normalize_rewards` needs `implementation"),
        ({"implementation": "reference", "learning_rate_schedule": "linear"}, "`learning_rate_schedule=linear` needs"),
        ({"learning_rate_schedule": "step"}, "`learning_rate_schedule` 'step' is not known"),
        ({"actors": 2, "normalize_observations": True}, "`actors` and `normalize_observations` cannot be used togeth"),
        ({"actors": 2, "normalize_rewards": True}, "`actors` and `normalize_rewards` cannot be used together"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        TrainConfig(**settings).checked()
