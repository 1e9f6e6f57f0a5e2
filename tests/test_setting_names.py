"""What is suggested for settings that there are not."""

import pickle

import pytest

from shoal import TrainConfig, load, make_env, train
from shoal.classifiers import ClassifierConfig
from shoal.commands.arguments import settings_in
from shoal.commands.train_arguments import TrainArguments
from shoal.errors import ELSEWHERE, OTHER_COMMANDS, SETTING_ALIASES, UserError, nearest

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
        ("--wandb-project-name", "track_project"),
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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TrainConfig(episods=10), "TrainConfig has no 'episods'; perhaps you meant episodes."),
        (lambda: TrainConfig(learning_starts=10), "TrainConfig has no 'learning_starts'; perhaps you meant warmup."),
        (lambda: TrainConfig(lr=0.1), "TrainConfig has no 'lr'; perhaps you meant learning_rate."),
        (lambda: TrainConfig(colour=1), "TrainConfig has no 'colour'."),
        (lambda: ClassifierConfig(epoch=3), "ClassifierConfig has no 'epoch'; perhaps you meant epochs."),
        (lambda: make_env("predator-prey", agent=6), "make_env() has no 'agent'; perhaps you meant agents."),
        (lambda: make_env("predator-prey", n_envs=6), "make_env() has no 'n_envs'; perhaps you meant copies."),
        (lambda: load("run", env_option="{}"), "load() has no 'env_option'; perhaps you meant env_options."),
        (lambda: train(TrainConfig(), callback=[]), "train() has no 'callback'; perhaps you meant callbacks."),
        (lambda: train(episodes=3), "train() has no 'episodes'; settings are in its config."),
    ],
)
def test_keyword_arguments_of_python(call, said):
    for kind in (UserError, TypeError):
        with pytest.raises(kind) as error:
            call()
        assert str(error.value) == said


def test_names_are_checked_and_nothing_else():
    assert TrainConfig("predator-prey", episodes=3) == pickle.loads(
        pickle.dumps(TrainConfig("predator-prey", episodes=3))
    )
    assert make_env.__doc__.startswith("Copies of the world")
    with pytest.raises(TypeError, match="multiple values"):
        make_env("predator-prey", name="predator-prey")
