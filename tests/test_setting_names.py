"""What is suggested for settings that there are not."""

import pytest

from shoal.arguments import settings_in
from shoal.commands.train_arguments import TrainArguments
from shoal.setting_names import ELSEWHERE, OTHER_COMMANDS, SETTING_ALIASES, nearest

TRAIN = list(settings_in(TrainArguments))


def test_other_names_lead_to_settings_that_exist():
    assert {*SETTING_ALIASES.values(), *ELSEWHERE.values()} <= set(TRAIN)
    assert not set(TRAIN) & {*SETTING_ALIASES, *ELSEWHERE, *OTHER_COMMANDS}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--policy-lr", "learning_rate"),
        ("--num-layers", "hidden"),
        ("--eps", "epsilon"),
        ("--exploration-final-eps", "epsilon"),
        ("--num-prey", "prey_count"),
        ("--n-env", "copies"),
        ("--n-steps", "n_step"),
        ("--EPISODES=3", "episodes"),
        ("--n-eval-episodes", "evaluate_episodes"),
        ("--checkpoint-freq", "checkpoint_every"),
        ("total_timestep", "episodes"),
        ("batchsize", "batch"),
        ("--workers", "env_workers"),
        ("--update-interval", "update_every"),
        ("--total-steps", "episodes"),
        ("--grad-clip", "clip"),
        ("--policy-frequency", None),
        ("--track", None),
        ("--capture-video", None),
        ("-x", None),
    ],
)
def test_nearest_of_train(word, meant):
    assert nearest(word, TRAIN) == meant


def test_names_are_suggested_only_where_there_is_such_a_setting():
    assert nearest("--ckpt", ["checkpoint", "episodes"]) == "checkpoint"
    assert nearest("--n-eval-episodes", ["checkpoint", "episodes"]) == "episodes"
    assert nearest("--batch-size", ["agents", "ring"]) is None
