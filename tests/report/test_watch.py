"""Filming episodes, and films as files."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from shoal import TrainConfig, train
from shoal.envs import make_env
from shoal.errors import UserError
from shoal.report import watch
from shoal.report.scene import BODY, CAUGHT, COVERED, PAPER
from shoal.report.watch import (
    GIF_SIDE,
    MARGIN,
    STRIP_SIDE,
    draw_gif,
    draw_run,
    draw_strip,
    record,
    record_frames,
    record_run,
)
from shoal.training.evaluation import build_env


def gif_frames(path):
    """All frames of a GIF as RGB arrays, and how long each is shown, in milliseconds."""
    with Image.open(path) as image:
        assert image.format == "GIF"
        frames, durations = [], []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.array(image.convert("RGB")))
            durations.append(image.info["duration"])
    return frames, durations


def test_film_has_every_step_of_the_episode(navigation, right):
    film = record(navigation, right)
    (episode,) = film.episodes
    assert film.title == "tiny"
    assert episode.reward.tolist() == [[1], [2], [3], [4], [5]]
    assert film.running_return(episode).tolist() == [0, 1, 3, 6, 10, 15]
    expected = [[(-0.5 + 0.2 * step, 0.0), (0.5, 0.0)] for step in range(6)]
    np.testing.assert_allclose(episode.moments.position, expected, atol=1e-6)


def test_last_frame_belongs_to_the_old_episode(navigation, right):
    navigation.remembers = False
    position = record(navigation, right).episodes[0].moments.position
    np.testing.assert_allclose(position[:, 0, 0], [-0.5, -0.3, -0.1, 0.1, 0.3, 0.3])


def test_several_episodes_start_from_reset(navigation, right):
    film = record(navigation, right, episodes=3)
    assert [episode.steps for episode in film.episodes] == [5, 5, 5]
    assert all(episode.moments.position[0, 0, 0] == -0.5 for episode in film.episodes)


def test_an_endless_episode_is_filmed_up_to_a_limit(navigation, right):
    navigation.length = 10**9
    episode = record(navigation, right, max_steps=7).episodes[0]
    assert episode.steps == 7
    assert len(episode.moments.position) == 8


def test_film_shows_the_teams_return(navigation, right):
    film = record(navigation, right)
    reward = np.array([[1.0, 3.0, -50.0], [1.0, 1.0, -50.0]])
    episode = dataclasses.replace(film.episodes[0], reward=reward)
    assert dataclasses.replace(film, team=2).running_return(episode).tolist() == [0, 2, 3]


def test_mixed_teams_show_returns_by_group():
    env = make_env("predator-prey", agents=3, prey="learned", seed=3, copies=1)
    film = record(env, lambda observation: env.sample_actions())
    episode = film.episodes[0]
    hunted, prey = episode.reward[:, :3].mean(), episode.reward[:, 3].mean()
    expected = [f"predator return {25 * hunted:.1f}", f"prey return {25 * prey:.1f}".replace("-", "−")]
    assert prey < 0 and film.returns_so_far(episode, 25) == expected
    three = dataclasses.replace(film, groups={"a": [0], "b": [1, 2], "c": [3]})
    many = dataclasses.replace(film, groups={name: [0] for name in "abcd"})
    assert many.returns_so_far(episode, 0) == ["return per agent 0.0"]
    strips = [watch._strip_row(one, episode, 2).height for one in (many, film, three)]
    frames = [watch._gif_frame(one, 0, 25, None).height for one in (many, film, three)]
    assert np.diff(strips).tolist() == [0, 20] and np.diff(frames).tolist() == [20, 20]  # a strip has room for two


def test_the_gif_shows_the_agent_moving_to_the_landmark(navigation, right, tmp_path):
    path = draw_gif(record(navigation, right), tmp_path / "a.gif", seconds_per_step=0.2, pause=1.5)
    frames, durations = gif_frames(path)
    assert len(frames) == 5 * 4 + 1
    assert durations == [50] * 20 + [1500]
    assert all(frame.shape[1] == GIF_SIDE + 2 * MARGIN for frame in frames)
    blue = [np.argwhere((frame == BODY["agent"]).all(axis=2))[:, 1].mean() for frame in frames]
    assert blue[0] < blue[10] < blue[20]
    field = frames[0][68 : 68 + GIF_SIDE], frames[-1][68 : 68 + GIF_SIDE]
    covered = [(picture == COVERED).all(axis=2).any() for picture in field]
    assert covered == [False, True]
    assert (frames[0][2, 2] == PAPER).all()


def test_unchanged_frames_keep_their_duration(navigation, tmp_path):
    still = record(navigation, lambda observation: np.zeros((1, 1, 2)))
    _, durations = gif_frames(draw_gif(still, tmp_path / "a.gif", seconds_per_step=0.2, pause=1))
    assert sum(durations) == 5 * 200 + 1000


def test_a_very_long_film_skips_steps(navigation, right, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.report.watch.MOST_FRAMES", 20)
    navigation.length = 50
    frames, durations = gif_frames(draw_gif(record(navigation, right), tmp_path / "a.gif", 0.02, 0.1))
    assert len(frames) == 18  # every third step, and the last
    assert durations == [60] * 17 + [100]


def test_strip_layout(navigation, right, tmp_path):
    sizes = {}
    for episodes in (1, 2):
        path = draw_strip(record(navigation, right, episodes), tmp_path / f"{episodes}.png", moments=3)
        with Image.open(path) as image:
            assert image.format == "PNG"
            sizes[episodes] = image.size
            top = 44 + STRIP_SIDE // 2
            panels = [np.array(image)[top, MARGIN + i * (STRIP_SIDE + MARGIN) :][:STRIP_SIDE] for i in range(3)]
    centres = [np.flatnonzero((panel == BODY["agent"]).all(axis=1)).mean() for panel in panels]
    assert centres[0] < centres[1] < centres[2]
    assert sizes[1][0] == sizes[2][0] == 2 * MARGIN + 3 * STRIP_SIDE + 2 * MARGIN
    assert sizes[2][1] - sizes[1][1] == STRIP_SIDE + 44 + MARGIN


def test_a_strip_of_a_short_episode_repeats_nothing(navigation, right, tmp_path):
    navigation.length = 2
    with Image.open(draw_strip(record(navigation, right), tmp_path / "a.png", moments=6)) as image:
        assert image.width == 2 * MARGIN + 3 * STRIP_SIDE + 2 * MARGIN


def test_strip_includes_catches(chase, right, tmp_path):
    chase.length = 20
    film = record(chase, lambda observation: right(observation) if chase.time == 3 else np.zeros((1, 1, 2)))
    film.episodes[0].moments.position[5:, 0] = (-0.3, 0.0)  # the predator touches at step 4 only
    assert film.episodes[0].moments.highlights() == [4]
    with Image.open(draw_strip(film, tmp_path / "a.png", moments=5)) as image:
        panel = np.array(image)[44 : 44 + STRIP_SIDE, MARGIN + STRIP_SIDE + MARGIN :][:, :STRIP_SIDE]
    assert (panel == CAUGHT).all(axis=2).sum() > 50


def test_rendering_worlds_are_filmed_by_their_images(self_drawing, tmp_path):
    film = record(self_drawing, lambda observation: np.zeros((1, 1, 1)))
    frames = film.episodes[0].moments.frames
    assert [frame[0, 0, 0] for frame in frames] == [0, 40, 80, 120, 120]  # the last is gone with the reset
    assert film.running_return(film.episodes[0])[-1] == -4
    pictures, _ = gif_frames(draw_gif(film, tmp_path / "a.gif"))
    assert pictures[0].shape[:2] == (68 + round(GIF_SIDE * 40 / 60) + MARGIN, GIF_SIDE + 2 * MARGIN)
    assert [picture[200, 200].tolist() for picture in pictures] == [[grey] * 3 for grey in (0, 40, 80, 120, 120)]
    with Image.open(draw_strip(film, tmp_path / "a.png")) as image:
        assert image.width == 2 * MARGIN + 5 * STRIP_SIDE + 4 * MARGIN


def test_large_pictures_are_kept_small(self_drawing):
    self_drawing.shape = (1200, 900, 3)
    frames = record_frames(self_drawing, lambda observation: np.zeros((1, 1, 1))).episodes[0].moments.frames
    assert frames[0].shape == (GIF_SIDE, GIF_SIDE * 3 // 4, 3)


def test_world_without_positions_is_refused(self_drawing):
    self_drawing.render = lambda: None
    with pytest.raises(UserError, match="'gym:tiny' cannot be watched"):
        record(self_drawing, lambda observation: np.zeros((1, 1, 1)))


def test_world_without_render_is_refused(self_drawing, monkeypatch):
    monkeypatch.delattr(type(self_drawing), "render")
    with pytest.raises(UserError, match="neither positions nor"):
        record(self_drawing, lambda observation: np.zeros((1, 1, 1)))


PLAIN = """
import gymnasium
from gymnasium.spaces import Discrete

class Plain(gymnasium.Env):
    observation_space, action_space = Discrete(2), Discrete(2)

class Sized(Plain):
    def __init__(self, size=1):
        pass

class Strict(Plain):
    def __init__(self, render_mode=None):
        assert render_mode is None, "no pictures here."
"""


@pytest.mark.parametrize(
    ("world", "words"),
    [
        ("Plain", r"its constructor takes no render_mode \(.*\); watch needs a constructor that takes render_mode="),
        ("Sized", r"its constructor takes no render_mode \(.*keyword argument 'render_mode'\); watch needs"),
        ("Strict", r'its constructor fails with render_mode="rgb_array" \(no pictures here\); watch needs'),
        ("Missing", "has no class or function Missing.$"),
    ],
)
def test_world_without_render_mode_is_refused(tmp_path, monkeypatch, world, words):
    (tmp_path / "plain_worlds.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    policy = SimpleNamespace(config=TrainConfig(env=f"gym:plain_worlds:{world}"))
    policy.make_env = lambda copies, seed: build_env(policy.config, copies, seed, stagger=False)
    with pytest.raises(UserError, match=words):
        watch._env_with_pictures(policy, 0)


def test_non_finite_positions_are_refused(navigation):
    with pytest.raises(UserError, match="not finite"):
        record(navigation, lambda observation: np.full((1, 1, 2), np.nan))


@pytest.mark.parametrize("draw", [draw_gif, draw_strip])
@pytest.mark.parametrize("place", ["missing/a.gif", "file/a.gif", "folder", ""])
def test_unwritable_path_is_refused(navigation, right, tmp_path, monkeypatch, draw, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="Cannot write"):
        draw(record(navigation, right), place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_full_disk_keeps_the_old_image(navigation, right, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    path = draw_strip(record(navigation, right), tmp_path / "a.png")
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"a\.png: No space left on device"):
        draw_strip(record(navigation, right), path, moments=2)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"max_steps": 0}])
def test_impossible_numbers_are_refused(navigation, right, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        record(navigation, right, **wrong)


@pytest.mark.parametrize("wrong", [{"seconds_per_step": 0.0}, {"seconds_per_step": float("nan")}, {"pause": -1.0}])
def test_impossible_speed_is_refused(navigation, right, tmp_path, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        draw_gif(record(navigation, right), tmp_path / "a.gif", **wrong)


@pytest.mark.parametrize("rules", ["mpe2", "openai"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cooperative-navigation", {"landmarks": 2}),
        ("predator-prey", {"prey": "scripted"}),
        ("predator-prey", {"prey": "learned", "prey_count": 2}),
    ],
)
def test_real_worlds_are_filmed_to_their_last_moment(name, options, rules):
    """A world whose episodes are one step longer has not reset yet, and knows its true position."""
    longer = make_env(name, agents=3, rules=rules, episode_length=11, seed=4, **options)
    env = make_env(name, agents=3, rules=rules, episode_length=10, seed=4, copies=1, **options)
    actions = np.random.default_rng(0).random((10, 1, env.spec.agents, 5))
    plan = iter(actions)
    film = record(env, lambda observation: next(plan))
    longer.reset()
    for action in actions:
        longer.step(action)
    moments = film.episodes[0].moments
    assert moments.position.shape == (11, len(env.entities), 2)
    np.testing.assert_allclose(moments.position[-1], longer.position[0], atol=1e-5)
    assert not np.allclose(moments.position[-1], moments.position[-2], atol=1e-5)


def test_touches_in_the_film_add_up_to_the_predators_return():
    env = make_env("predator-prey", agents=12, prey="random", prey_count=8, seed=1)
    film = record(env, lambda observation: np.zeros((1, 12, 5)), episodes=2)
    for episode in film.episodes:
        touches = episode.moments.touching[1:].sum()
        assert touches > 0
        assert film.running_return(episode)[-1] == pytest.approx(10 * touches)


def test_a_real_episode_becomes_a_small_gif(tmp_path):
    env = make_env("predator-prey", agents=3, seed=2)
    random = np.random.default_rng(0)
    film = record(env, lambda observation: np.eye(5)[random.integers(5, size=(1, 3))])
    path = draw_gif(film, tmp_path / "a.gif")
    frames, durations = gif_frames(path)
    assert 25 < len(frames) <= 101
    assert sum(durations) == 25 * 200 + 2000
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("world", ["predator-prey", "gym:CartPole-v1"])
def test_the_trained_team_of_a_run_is_drawn_into_its_folder(world, tmp_path):
    run = tmp_path / "run"
    short = {"episodes": 4, "copies": 2, "evaluate_episodes": 0, "tensorboard": False}
    train(TrainConfig(env=world, warmup=20, update_every=10, batch=8, hidden=(8,), out=str(run), **short))
    strip, gif = draw_run(run, seed=3, noisy=False, warn=pytest.fail)
    assert (strip.parent, gif.parent) == (run, run)
    assert len(gif_frames(gif)[0]) > 5
    with Image.open(strip) as image:
        assert image.format == "PNG"
    again = record_run(run, seed=3, noisy=False, warn=pytest.fail)
    assert again.title.endswith(world.removeprefix("gym:")) and again.title.startswith("MADDPG in ")
    (alone,) = draw_run(run, seed=3, noisy=False, warn=pytest.fail, out=tmp_path / "alone.GIF")
    assert alone.read_bytes() == gif.read_bytes() and not (tmp_path / "episode.png").exists()
    assert draw_strip(again, tmp_path / "again.png").read_bytes() == strip.read_bytes()
    other = record_run(run, seed=4, noisy=False, warn=pytest.fail)
    train(TrainConfig(env=world, hidden=(8,), out=str(tmp_path / "untrained"), **short))
    assert record_run(tmp_path / "untrained", 3, False, pytest.fail).title == f"Untrained team in {world}"
    assert draw_strip(other, tmp_path / "other.png").read_bytes() != strip.read_bytes()
