"""A zip whose normaliser was forgotten: one warning, by whichever hint there is, and none where there is none."""

import base64
import pickle
import shutil
from collections import deque

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from shoal.policies import load
from shoal.policies.baselines_zip import logged_returns, saw_normalised, saw_outside
from shoal.policies.normaliser import normaliser_beside
from tests.policies.zips import Trap, changed, make, saved


def pickled(value, protocol=5):
    return {":type:": str(type(value)), ":serialized:": base64.b64encode(pickle.dumps(value, protocol)).decode()}


def logging(*returns):
    """Plain text of a zip whose last training episodes had these returns."""
    return lambda data: data | {"ep_info_buffer": pickled(deque([{"r": r, "l": 9, "t": 0.5} for r in returns], 100))}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model that does not know VecNormalize."""
    return saved(make("ppo", "Pendulum-v1", n_steps=16, batch_size=16), tmp_path_factory.mktemp("plain") / "ppo.zip")


def warnings_of(path, *, normaliser="", evaluated=False, states=False, **options):
    said = []
    policy = load(path, "Pendulum-v1", normaliser=normaliser, warn=said.append, **options)
    if evaluated:
        policy.evaluate(2)
    if states:
        policy.states()
    return said


@pytest.mark.parametrize("normalised", [False, True])
def test_vecnormalize_is_detected_from_the_zip(tmp_path, normalised):
    env = make_vec_env("Pendulum-v1", 1, seed=0)
    model = make("ppo", VecNormalize(env) if normalised else env, n_steps=16, batch_size=16, n_epochs=1)
    path = saved(model.learn(16), tmp_path / "ppo.zip")
    said = warnings_of(path)
    assert len(said) == normalised and all("was trained with VecNormalize" in one for one in said)
    (tmp_path / "vecnormalize.pkl").touch()  # of another model, if this one was trained without
    assert len(warnings_of(path)) == normalised
    np.savez(tmp_path / "n.npz", mean=np.zeros(3), var=np.ones(3))
    assert not warnings_of(path, normaliser=str(tmp_path / "n.npz"), evaluated=True, states=True)


@pytest.mark.parametrize("algorithm", ["dqn", "ddpg", "td3", "sac"])
def test_vecnormalize_is_detected_from_observation_dtypes(algorithm):
    single, double = (pickled(np.zeros((1, 3), kind)) for kind in (np.float32, np.float64))
    assert saw_normalised({"_last_obs": single, "_last_original_obs": double}, algorithm)
    for seen, original in ((single, single), (double, double), (single, None), (None, double), (single, {})):
        assert not saw_normalised({"_last_obs": seen, "_last_original_obs": original}, algorithm)


@pytest.mark.parametrize("normalised", [False, True])
def test_observations_outside_their_space_warn(tmp_path, normalised):
    env = make_vec_env("Pendulum-v1", 2, seed=0)
    model = make("sac", VecNormalize(env) if normalised else env, learning_starts=100)
    path = saved(model.learn(20), tmp_path / "sac.zip")
    said = warnings_of(path)
    assert len(said) == normalised and all("outside the environment's bounds" in one for one in said)


def test_last_observations_are_compared_with_bounds_in_plain_text():
    space = {"low": "[-1.  -inf]", "high": "[1. inf]"}

    def outside(*seen, kind=np.float32, **changes):
        return saw_outside({"_last_obs": pickled(np.array(seen, kind)), "observation_space": space | changes})

    assert outside([0, 0], [-1.1, 0]) and outside([1.1, 0], kind=np.float64)
    assert outside([[0.5, 7.0]], low="[[ 0.6\n -9.0]]", high="[[2.\n 9.]]")
    assert not outside([1, -1e30], [-1, 1e30]) and not outside([1 + 1e-7, 0])
    for damaged in ({"low": "[-1. ... 1.]"}, {"high": None}, {"low": "[]", "high": "[]"}, {"low": "[1.]"}):
        assert not outside([9, 9], **damaged)
    for damaged in (None, {}, pickled([1.5]), pickled(np.array(["9"]))):
        assert not saw_outside({"_last_obs": damaged, "observation_space": space})


def test_python_warns_with_the_line_that_loads(tmp_path, plain):
    path = shutil.copy(plain, tmp_path / "ppo.zip")
    (tmp_path / "vecnormalize.pkl").touch()
    with pytest.warns(UserWarning, match="is not used: if") as told:
        load(path, "Pendulum-v1")
    assert [warning.filename for warning in told] == [__file__]


def test_normaliser_files_beside_a_zip(tmp_path):
    path = tmp_path / "rl_model_500_steps.zip"
    for name in ("policy.pkl", "normal.npz", "vecnormalize.txt"):
        (tmp_path / name).touch()
    assert normaliser_beside(path, "Pendulum-v1") is None
    (tmp_path / "Pendulum-v1").mkdir()
    (tmp_path / "rl_model_500_steps").mkdir()
    # from the last resort to the best: of the environment, of the zip's name, beside the zip, of the same checkpoint
    for name in (
        "Pendulum-v1/vecnormalize.pkl", "rl_model_500_steps/vecnormalize.pkl", "vec_normalize.npz",
        "rl_model_vecnormalize_500_steps.pkl",
    ):  # fmt: skip
        (tmp_path / name).touch()
        assert normaliser_beside(path, "Pendulum-v1") == tmp_path / name
    assert normaliser_beside(tmp_path / "none" / "x.zip", "") is None


def test_warning_names_the_normaliser_file_and_option(tmp_path, plain):
    path = tmp_path / "ppo.zip"
    path.write_bytes(plain.read_bytes())
    (tmp_path / "my_vec_normalize.pkl").touch()
    (sentence,) = warnings_of(path)
    assert f"my_vec_normalize.pkl' is not used: if '{path}' was trained with it" in sentence
    assert sentence.endswith("`normaliser=FILE`.")


@pytest.mark.parametrize("how", ["states", "evaluated"])
def test_unscaled_observations_warn(tmp_path, plain, how):
    assert not warnings_of(plain, **{how: True})
    large = changed(plain, tmp_path / "large.zip", tensors=lambda held: {k: 100 * v for k, v in held.items()})
    (sentence,) = warnings_of(large, **{how: True})
    assert "out of scale for the first layer" in sentence and "`normaliser=FILE`" in sentence


def test_return_far_below_the_logged_one_warns(tmp_path, plain):
    low = changed(plain, tmp_path / "low.zip", data=logging(*[-1500.0 + k for k in range(8)]))
    assert not warnings_of(low, evaluated=True)
    few = changed(plain, tmp_path / "few.zip", data=logging(-150.0, -160.0))
    assert not warnings_of(few, evaluated=True)
    learning = [-2000.0] * 60  # episodes before the last ones do not count
    high = changed(plain, tmp_path / "high.zip", data=logging(*learning, *[-150.0 - k for k in range(20)]))
    for other in ({"episode_length": 150}, {"env_options": '{"g": 9.0}'}):  # returns of other episodes
        assert not warnings_of(high, evaluated=True, **other)
    (sentence,) = warnings_of(high, evaluated=True, states=True)
    assert warnings_of(high, evaluated=True, env_workers=2) == [sentence]
    assert "but -159.5 at the end of its training" in sentence and "`normaliser=FILE`" in sentence


def test_logged_returns_are_read_without_loading_the_pickle(tmp_path):
    returns = [1.5, -2.25, 3.0, 0.1]
    infos = deque([{"r": r, "l": 9, "t": 7.25} for r in returns], 100)
    for protocol in (4, 5):
        assert logged_returns({"ep_info_buffer": pickled(infos, protocol)}) == tuple(returns)
    sprung = tmp_path / "sprung"
    trap = deque([{"r": 1.5}, Trap(sprung)])
    assert logged_returns({"ep_info_buffer": pickled(trap)}) == (1.5,) and not sprung.exists()
    for damaged in (
        {},
        None,
        {":serialized:": 3},
        {":serialized:": "%"},
        {":serialized:": base64.b64encode(b"\x80")},
        {":serialized:": base64.b64encode(pickle.dumps({"r": 1.5}).ljust(2**20, b"N"))},
    ):
        assert logged_returns({"ep_info_buffer": damaged}) == ()
