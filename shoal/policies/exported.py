"""An exported ONNX file as a trained policy: run by ONNX Runtime alone, without torch."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.envs.base import VectorEnv
from shoal.errors import UserError
from shoal.inference.engine import Draws
from shoal.inference.file import PolicyFile
from shoal.policies.trained import MOST_COPIES, MOST_IMAGES, Array, TrainedPolicy
from shoal.policies.worlds import world_config
from shoal.system.processors import check_threads
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env


class ExportedPolicy(TrainedPolicy):
    """A policy that `shoal export` wrote."""

    kind = "onnx"

    def __init__(self, path: Path, said: Mapping[str, Any], threads: int = 1, trust: bool = False) -> None:
        """`said`: the user's options for the world."""
        check_threads(threads)
        self.file = PolicyFile(path, threads)
        self.name, self.precision = str(path), self.file.precision
        self.agents, self.action_size = self.file.agents, self.file.action_size
        self.observation_size = int(self.file.facts.get("one_hot") or self.file.observation_size)
        self.discrete, self.modes = self.file.discrete, (not self.file.draws,)
        self.image: list[int] | None = self.file.facts.get("image")
        self.most_copies = MOST_IMAGES if self.image else MOST_COPIES
        self._said, self._trust = dict(said), trust
        if self.image and (idle := sorted(said.keys() - {"env"})):
            raise UserError(f"`{idle[0]}` has no effect on an environment with image observations; leave it out.")

    @cached_property
    def config(self) -> TrainConfig:
        """The settings of its world; determined on first use, because acting does not need them."""
        return world_config(self.file.facts.get("world"), self._said, self._trust, f"'{self.name}'")

    @property
    def env(self) -> str:
        """The name of its world."""
        return self.config.env

    def make_env(self, copies: int = 1, seed: int = 0) -> VectorEnv:
        """Its world, with vector observations or flattened images."""
        env = self._pixels(copies, seed) if self.image else build_env(self.config, copies, seed, stagger=False)
        try:
            self.file.check_fits(env.spec)
        except UserError:
            env.close()
            raise
        return env

    @property
    def algorithm(self) -> str:
        """The one that the file names."""
        return str(self.file.facts.get("algorithm") or "")

    @property
    def _env_named(self) -> str:
        return str(self._said.get("env") or self.file.facts.get("env") or "an unknown world")

    def respond(self, observation: Array, deterministic: bool) -> Array:
        """The file's actions."""
        return self.file.play(observation, sample=not deterministic)

    def reseed(self, seed: int) -> None:
        """Reseed the noise of sampled choices."""
        self.file.noise = Draws(seed)

    def _pixels(self, copies: int, seed: int) -> VectorEnv:
        from shoal.envs.pixels import make_pixels

        assert self.image is not None
        env, shape = make_pixels(self.env, self.image[0], copies, seed)
        if list(shape) != list(self.image):
            env.close()
            raise UserError(f"The policy sees images of {self.image}, but those of {self.env} are {list(shape)}.")
        return env
