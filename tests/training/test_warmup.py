"""A run that ends before its warm-up says so: before the start where that is known, else as soon as it is clear."""

import pytest

from shoal import TrainConfig, make_env, train
from shoal.envs.base import EnvSpec
from shoal.training.observer import Silent
from shoal.training.warmup import WarmUp

SHORT = {"hidden": (8,), "evaluate_episodes": 0, "tensorboard": False, "threads": 1}


class Heard(Silent):
    def __init__(self):
        self.said, self.begun = [], None

    def tell(self, sentence):
        self.said.append((self.begun, sentence))

    def advance(self, training):
        self.begun = training.episodes


def spec(**lengths):
    return EnvSpec("toy", ("agent_0",), (3,), (2,), True, **lengths)


def config(**settings):
    return TrainConfig(**{"episodes": 100, "copies": 10, "warmup": 5_000, **settings}).checked()


@pytest.mark.parametrize(
    ("settings", "lengths", "most"),
    [
        ({}, {"episode_length": 25}, 120 * 25),
        ({"warmup": 3_000}, {"episode_length": 25}, None),
        ({"actors": 2}, {"episode_length": 25}, 140 * 25),
        ({"actors": 2, "warmup": 3_000}, {"episode_length": 25}, None),
        ({}, {"stated_length": 25}, 109 * 25),
        ({"warmup": 2_725}, {"stated_length": 25}, None),
        ({}, {}, None),
        ({"warmup": 100, "update_every": 10_000}, {"episode_length": 25}, 120 * 25),  # not one update is due
    ],
)
def test_too_short_run_is_reported_before_the_start(settings, lengths, most):
    said = WarmUp(config(**settings), spec(**lengths)).before()
    assert (said is None) == (most is None)
    assert most is None or f"Nothing will be learned: the run ends after at most {most:,} samples, before" in said


def test_too_short_run_is_reported_once_episodes_are_known():
    watch = WarmUp(config(), spec())
    assert watch.before() is None
    assert watch.so_far(19, 200) is None  # not yet clear
    assert watch.so_far(20, 1_000) is None  # long enough
    assert "will be learned: the run ends after about 4,995 samples, before" in watch.so_far(20, 999)
    assert watch.so_far(21, 999) is None  # said once


def test_too_short_run_is_reported_at_the_end():
    watch = WarmUp(config(episodes=2, copies=1), spec())
    assert "Nothing was learned: the run ended after 30 samples, before the warm-up of 5,000; set" in (
        watch.so_far(2, 30)
    )


def test_too_short_run_with_known_episode_length():
    assert make_env("pettingzoo:mpe2.simple_adversary_v3").spec.stated_length == 25
    assert make_env("pettingzoo:mpe2.simple_adversary_v3", options={"max_cycles": 9}).spec.stated_length == 9
    assert make_env("pettingzoo:mpe2.simple_adversary_v3", episode_length=7).spec.stated_length is None
    assert make_env("pettingzoo:sisl.multiwalker_v9").spec.stated_length == 500  # in the world inside it


@pytest.mark.parametrize(
    ("settings", "before"),
    [
        ({"env": "pettingzoo:mpe2.simple_adversary_v3", "episodes": 4, "copies": 2}, True),
        ({"env": "gym:CartPole-v1", "episodes": 8, "copies": 2, "warmup": 2_000}, False),  # 500 steps would do
    ],
)
def test_too_short_run_is_reported_once(tmp_path, settings, before):
    heard = Heard()
    result = train(TrainConfig(**SHORT, **settings, out=str(tmp_path / "run")), observer=heard, pictures=False)
    ((begun, sentence),) = heard.said
    assert result.updates == 0 and sentence.startswith("Nothing will be learned: ") and (begun is None) == before
