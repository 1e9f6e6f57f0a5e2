"""Environments whose observations are images, as flat vectors: channels first, the last frames stacked.

Atari games are played as Stable-Baselines3 trains them: grey, 84 x 84, four frames for each action of which the last
two are laid over each other, up to 30 idle frames at the start, and the button that starts a life pressed; but whole
games, for the game's own score.
"""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.envs.adapters import Solo, construct, make_registered_or_named, register_atari
from shoal.envs.parallel import ParallelCopies
from shoal.errors import UserError, counted

SIDE, SKIP, MOST_IDLE = 84, 4, 30
Frame = NDArray[np.uint8]


def make_pixels(
    name: str, channels: int, copies: int = 1, seed: int = 0
) -> tuple[ParallelCopies, tuple[int, int, int]]:
    """Copies of a Gymnasium environment of images, and the shape (C, height, width) of what is seen.

    `channels` is what the policy wants: as many frames are stacked as that takes.
    """
    identifier = name.removeprefix("gym:")
    shape: list[tuple[int, int, int]] = []

    def one(options: dict[str, Any]) -> Solo:
        env = FrameStack(_made(identifier), channels, name)
        shape.append(env.shape)
        return Solo(env)

    worlds = construct(f"gym:{identifier}", copies, None, one)
    return ParallelCopies(f"gym:{identifier}", list(worlds), seed, worlds[0].own_limit, stagger=False), shape[0]


class FrameStack(gymnasium.Wrapper):
    """The last frames, channels first, oldest first, as one flat vector; before the first there is black."""

    def __init__(self, env: gymnasium.Env, channels: int, name: str) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 3 or space.dtype != np.uint8:
            raise UserError(
                f"{name} does not show images (bytes of shape height, width, channels), but the model sees them."
            )
        self._first = int(np.argmin(space.shape)) == 0  # the channels are the smallest of the three
        depth, height, width = space.shape if self._first else (space.shape[2], *space.shape[:2])
        if channels % depth:
            raise UserError(f"{name} shows images of {counted(depth, 'channel')}, but the model sees {channels}.")
        self.shape = (channels, height, width)
        self.observation_space = Box(0, 255, (channels * height * width,), np.uint8)
        self._frames: deque[Frame] = deque(maxlen=channels // depth)
        self._black = np.zeros((depth, height, width), np.uint8)

    def reset(self, **keywords: Any) -> tuple[Frame, dict[str, Any]]:
        observation, info = self.env.reset(**keywords)
        for _ in range(self._frames.maxlen or 1):
            self._frames.append(self._black)
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(observation), float(reward), terminated, truncated, info

    def _seen(self, frame: Frame) -> Frame:
        self._frames.append(frame if self._first else np.moveaxis(frame, 2, 0))
        return np.concatenate(self._frames).reshape(-1)


class Atari(gymnasium.Wrapper):
    """A game whose screen is grey already: four frames per action, 84 x 84."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        game: Any = env.unwrapped
        self._starts = game.get_action_meanings()[1:2] == ["FIRE"]
        self._lives = 0

    def reset(self, **keywords: Any) -> tuple[Frame, dict[str, Any]]:
        """Begin a game, and idle for a while so that no two begin alike."""
        frame, info = self.env.reset(**keywords)
        rng = np.random.default_rng(keywords.get("seed"))
        for _ in range(int(rng.integers(1, MOST_IDLE + 1))):
            frame, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                frame, info = self.env.reset(**keywords)
        if self._starts:
            frame, _, _, _, info = self.env.step(1)
        self._lives = info.get("lives", 0)
        return small(frame), info

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Play an action for four frames."""
        total, frames = 0.0, []
        for _ in range(SKIP):
            frame, reward, terminated, truncated, info = self.env.step(action)
            frames.append(frame)
            total += float(reward)
            if terminated or truncated:
                break
            if info.get("lives", 0) < self._lives and self._starts:
                self._lives, action = info["lives"], 1
        return small(np.maximum.reduce(frames[-2:])), total, terminated, truncated, info


def small(frame: Frame) -> Frame:
    """(84, 84, 1): the mean over the area of every new pixel."""
    from PIL import Image

    return np.asarray(Image.fromarray(frame).resize((SIDE, SIDE), Image.Resampling.BOX))[..., None]


def _made(identifier: str) -> gymnasium.Env:
    register_atari(identifier)
    known = registration.registry.get(identifier.rpartition(":")[2])
    if known is None or not str(known.entry_point).startswith("ale_py."):
        return make_registered_or_named(identifier, {})
    options: dict[str, Any] = {"obs_type": "grayscale", "frameskip": 1, "repeat_action_probability": 0.0}
    return Atari(gymnasium.make(identifier, disable_env_checker=True, **options))
