"""What every trained policy can do (act, and be evaluated in its world), and loading one from a path.

Exported ONNX files are here, too; policies with torch weights are in `torch_policy.py`, and torch is imported only for
run folders and zips.

Shape letters: E copies, N agents, O observation, A action.
"""

import contextlib
import dataclasses
import os
import sys
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.config import algorithm_title
from shoal.envs.base import EnvSpec, VectorEnv
from shoal.errors import UserError, counted, names_checked, printable, whole_number
from shoal.system.processors import check_threads
from shoal.training.config import TrainConfig, WorldConfig
from shoal.training.evaluation import Act, Evaluation, build_env, evaluate_controllers, play, random_act
from shoal.trust import check_trusted, env_name

if TYPE_CHECKING:
    from shoal.policies.quantize import WidthTable
    from shoal.quantization.export import Exported

Array = NDArray[np.float32]
PolicyKind = Literal["run", "zip", "onnx"]
MOST_COPIES, MOST_IMAGES = 100, 8
"""Copies of a world that an evaluation plays in parallel; fewer with image observations."""
WORLD_FIELDS = tuple(field.name for field in dataclasses.fields(WorldConfig))
PUBLIC = (
    "act", "action_size", "agents", "algorithm", "config", "discrete", "env", "evaluate", "evaluate_controllers",
    "evaluate_random", "export", "export_each", "kind", "make_env", "modes", "name", "observation_size", "precision",
    "quantize", "spec",
)  # fmt: skip


class TrainedPolicy(ABC):
    """A trained policy and its world.

    Attributes:
        kind: run, zip or onnx.
        name: the path that it was loaded from.
        algorithm: the algorithm that it was trained with, such as ppo; empty if that is unknown.
        precision: float32, or the precision of an exported file.
        agents: number of agents, N.
        observation_size: length of the longest observation, O.
        action_size: length of the longest action vector, A.
        discrete: whether actions are choices; else they are numbers in a box.
        modes: supported values of `deterministic`, the default of `evaluate` first.
        config: the settings of its world; for a run, all of its settings.
        channels: of image observations; None: it sees vectors.

    """

    kind: PolicyKind
    name: str
    algorithm: str
    precision: str = "float32"
    agents: int
    observation_size: int
    action_size: int
    discrete: bool
    modes: tuple[bool, ...]
    config: TrainConfig
    channels: int | None = None
    most_copies: int = MOST_COPIES
    several: bool = False  # agents have several choices, or only some agents have boxes

    @property
    def env(self) -> str:
        """The name of its world."""
        return self.config.env

    def make_env(self, copies: int = 1, seed: int = 0, stagger: bool = False) -> VectorEnv:
        """Make copies of its world; a `UserError` if the policy does not fit it."""
        env: VectorEnv
        if self.channels is None:
            env, image = build_env(self.config, copies, seed, stagger), None
        else:
            from shoal.envs.pixels import make_pixels

            env, image = make_pixels(self.env, self.channels, copies, seed)
        try:
            self._check_fits(env.spec, image)
        except UserError:
            env.close()
            raise
        return env

    @abstractmethod
    def _check_fits(self, spec: EnvSpec, image: tuple[int, int, int] | None) -> None:
        """Raise a `UserError` unless the policy fits this world, which may have images of this shape."""

    @abstractmethod
    def respond(self, observation: Array, deterministic: bool) -> Array:
        """Actions (E, N, A) in the world's units for its observations (E, N, O)."""

    @abstractmethod
    def reseed(self, seed: int) -> None:
        """Reseed the noise of sampled actions."""

    def __repr__(self) -> str:
        seen = counted(self.observation_size, "number")
        acted = f"{self.action_size} choices" if self.discrete else f"{counted(self.action_size, 'number')} in a box"
        acted = f"{self.action_size} numbers with several choices" if self.several else acted
        how = f"{algorithm_title(self.algorithm)} in {self._env_named}" if self.algorithm else self._env_named
        return printable(
            f"<trained policy in '{self.name}' ({self.kind}): {how}, {counted(self.agents, 'agent')}, observations of "
            f"{seen}, actions of {acted}, {self.precision}>"
        )

    def __dir__(self) -> list[str]:
        """The attributes that users need; the others serve exports and quantization."""
        return [name for name in PUBLIC if hasattr(type(self), name) or name in vars(self)]

    @property
    def _env_named(self) -> str:
        """The name of its world for people; not a reason to refuse anything."""
        return self.env

    @names_checked
    def act(self, observation: ArrayLike, deterministic: bool = True, as_choices: bool = False) -> NDArray[Any]:
        """The actions for an observation, as `env.step` takes them: see docs/worlds.md, "Actions of a trained policy".

        Args:
            observation: (O,) for a single agent, (N, O) for a team, or (E, N, O) for many copies.
            deterministic: take the most likely action; False: sample from the policy's distribution.
            as_choices: choices as whole numbers, counted from 0, instead of one-hot vectors.

        Returns:
            (A,), (N, A) or (E, N, A) float32: choices one-hot (sampled ones soft where training's are), boxes in the
            world's units; with `as_choices` (), (N,) or (E, N) int64.

        """
        observation = np.asarray(observation, np.float32)
        expected = (self.agents, self.observation_size)
        rows = observation[None, None] if observation.ndim == 1 else observation[None]
        rows = observation if observation.ndim == 3 else rows
        if rows.shape[1:] != expected:
            alone = f"({expected[1]},), " if self.agents == 1 else ""
            raise UserError(
                f"The observation has the shape {observation.shape}, but the policy in '{self.name}' takes "
                f"{alone}{expected} or (copies, {expected[0]}, {expected[1]})."
            )
        self._check_mode(deterministic)
        if as_choices and (self.several or not self.discrete):
            what = "not one choice per agent" if self.several else "numbers in a box, not choices"
            raise UserError(f"The actions of the policy in '{self.name}' are {what}.")
        shape = (*observation.shape[:-1], self.action_size)
        actions = self.respond(rows, deterministic).reshape(shape) if len(rows) else np.zeros(shape, np.float32)
        return np.asarray(actions.argmax(-1), np.int64) if as_choices else actions

    @names_checked
    def evaluate(
        self,
        episodes: int = 100,
        seed: int = 1,
        deterministic: bool | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Play whole episodes in its world.

        Args:
            episodes: number of episodes.
            seed: random seed of the episodes and of all noise.
            deterministic: take the most likely actions, or sample them; None: the first of `modes`.
            advance: called with the number of finished episodes.

        Returns:
            The mean return per agent, and the half-width of its 95 % confidence interval.

        """
        chosen = self.modes[0] if deterministic is None else deterministic
        self._check_mode(chosen)
        self.reseed(seed)
        return self._played(lambda observation: self.respond(observation, chosen), episodes, seed, advance)

    def evaluate_random(
        self, episodes: int = 100, seed: int = 1, advance: Callable[[int], None] | None = None
    ) -> Evaluation:
        """Evaluate a team that acts uniformly at random in the same episodes."""
        return self._played(None, episodes, seed, advance)

    def evaluate_controllers(self, episodes: int = 100, seed: int = 1) -> dict[str, Evaluation]:
        """Evaluate the hand-written controllers of its world in the same episodes, by name; most worlds have none."""
        episodes, seed = whole_number("episodes", episodes, 1, 10**7), whole_number("seed", seed, 0, 2**62)
        return evaluate_controllers(self.config, episodes, seed)

    def export(self, *args: Any, **options: Any) -> "Exported":
        """Write an ONNX file, checked against this policy: see `TorchPolicy.export`."""
        raise UserError(f"'{self.name}' is already an exported file; export the run or the zip that it was made from.")

    def quantize(self, *args: Any, **options: Any) -> "WidthTable":
        """Returns, share of unchanged actions and bytes at low precision: see `TorchPolicy.quantize`."""
        raise UserError(f"'{self.name}' is an exported file; quantize the run or the zip that it was made from.")

    def _check_mode(self, deterministic: bool) -> None:
        if not deterministic and False not in self.modes:
            raise UserError(f"The policy in '{self.name}' has no distribution to sample actions from.")

    def _played(self, act: Act | None, episodes: int, seed: int, advance: Callable[[int], None] | None) -> Evaluation:
        whole_number("episodes", episodes, 1, 10**7)
        whole_number("seed", seed, 0, 2**62)
        with contextlib.closing(self.make_env(min(episodes, self.most_copies), seed)) as env:
            return play(env, act or random_act(env.spec, seed), episodes, advance)


class ExportedPolicy(TrainedPolicy):
    """A policy that `shoal export` wrote."""

    kind = "onnx"

    def __init__(self, path: Path, options: Mapping[str, Any], threads: int = 1, trust: bool = False) -> None:
        """`options`: the user's settings of the world."""
        from shoal.inference.file import PolicyFile  # ONNX Runtime

        check_threads(threads)
        self.file = PolicyFile(path, threads)
        self.name, self.precision = str(path), self.file.precision
        self.algorithm = str(self.file.facts.get("algorithm") or "")
        self.agents, self.action_size = self.file.agents, self.file.action_size
        self.observation_size = int(self.file.facts.get("one_hot") or self.file.observation_size)
        self.discrete, self.modes = self.file.discrete, (not self.file.draws,)
        self.image: list[int] | None = self.file.facts.get("image")
        if self.image:
            self.channels, self.most_copies = self.image[0], MOST_IMAGES
        self._options, self._trust = dict(options), trust
        if self.image and (idle := sorted(options.keys() - {"env"})):
            raise UserError(f"`{idle[0]}` has no effect on an environment with image observations; leave it out.")

    @cached_property
    def config(self) -> TrainConfig:  # type: ignore[override]
        """The settings of its world; determined on first use, because acting does not need them."""
        return world_config(self.file.facts.get("world"), self._options, self._trust, f"'{self.name}'")

    def _check_fits(self, spec: EnvSpec, image: tuple[int, int, int] | None) -> None:
        if image is not None and list(image) != self.image:
            raise UserError(f"The policy sees images of {self.image}, but those of {self.env} are {list(image)}.")
        self.file.check_fits(spec)

    @property
    def _env_named(self) -> str:
        return str(self._options.get("env") or self.file.facts.get("env") or "an unknown world")

    def respond(self, observation: Array, deterministic: bool) -> Array:
        return self.file.play(observation, sample=not deterministic)

    def reseed(self, seed: int) -> None:
        from shoal.inference.policy import Draws  # here, because it imports numba

        self.file.noise = Draws(seed)


def world_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings of a run that define its world."""
    return {name: getattr(config, name) for name in WORLD_FIELDS}


def world_config(stored: Any, options: Mapping[str, Any], trust: bool, owner: str) -> TrainConfig:
    """The settings of the world to play in: the `stored` one that the policy was trained in, with the user's options.

    In another world none of the policy's own settings are kept. `trust` allows third-party code that `stored` names;
    the message that asks for it says whose world it is.
    """
    settings = stored if isinstance(stored, dict) and stored.keys() <= set(WORLD_FIELDS) else {}
    env = str(options.get("env") or settings.get("env") or "")
    if f"gym:{env}" == settings.get("env"):  # a Gymnasium ID without prefix
        env = f"gym:{env}"
    if not env:
        raise UserError("The file does not name the world that it was trained in; pass one with `env`.")
    if env != settings.get("env"):
        settings = {}
    unasked = {name: "" if name in options else str(settings.get(name) or "") for name in ("env", "env_options")}
    check_trusted(owner, unasked["env"], unasked["env_options"], trust)
    return TrainConfig(**{**settings, **options, "env": env}).checked()


def check_loadable(path: str, checkpoint: str = "last") -> PolicyKind:
    """The kind of policy at a path; what cannot be loaded is refused, as far as that can be told without torch."""
    if os.path.isdir(path):
        from shoal.training.saved_team import check_run

        check_run(Path(path), checkpoint)
        return "run"
    if not os.path.exists(path):  # False also for invalid file names
        raise UserError(f"There is no run folder, Stable-Baselines3 zip or ONNX file '{path}'.")
    if not os.path.isfile(path):  # a pipe would wait for its other end
        raise UserError(f"'{path}' is not a regular file.")
    if checkpoint != "last":
        raise UserError(f"`checkpoint` is for run folders, but '{path}' is not one.")
    return "zip" if path.lower().endswith(".zip") or zipfile.is_zipfile(path) else "onnx"


def warn_caller(sentence: str) -> None:
    """Warn with the line of code outside this package that led here."""
    package, level, frame = str(Path(__file__).parents[1]), 1, sys._getframe()
    while frame.f_code.co_filename.startswith(package) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, stacklevel=level)


@names_checked
def load(
    path: str | os.PathLike[str],
    env: str | Callable[..., Any] = "",
    *,
    agents: int | None = None,
    episode_length: int | None = None,
    env_options: str = "",
    env_workers: int | None = None,
    normaliser: str = "",
    threads: int | None = None,
    checkpoint: str | int = "last",
    trust: bool = False,
    warn: Callable[[str], None] = warn_caller,
) -> TrainedPolicy:
    """Load the trained policy in a run folder, a Stable-Baselines3 zip or an exported ONNX file.

    Args:
        path: run folder, zip or ONNX file.
        env: world to play in, by its name or as a class or function; empty: its own. A zip needs one, e.g. CartPole-v1.
        agents: number of agents, where the world supports several; None: as in training.
        episode_length: steps per episode; None: as in training, or the environment's own limit.
        env_options: the environment's constructor arguments as a JSON object.
        env_workers: processes that share the copies of a slow environment in evaluations, with the same results; None:
            this process alone. For PettingZoo, Gymnasium and dm_control.
        normaliser: a zip's observation normaliser (VecNormalize) as .npz or .safetensors; as .pkl only with `trust`.
        threads: ONNX Runtime threads; for exported files only.
        checkpoint: a run's newest weights (`last`), those with its best evaluation (`best`), or a snapshot's episode.
        trust: allow running third-party code that the path names or contains; not needed for a run's own environment
            where the run was trained by the same user on this machine.
        warn: called with warnings about damaged or doubtful files.

    """
    path = os.fspath(path)
    kind = check_loadable(path, str(checkpoint))
    options = {
        "env": env_name(env), "agents": agents, "episode_length": episode_length, "env_options": env_options,
        "env_workers": env_workers,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value not in (None, "")}
    if normaliser and kind != "zip":
        raise UserError(f"`normaliser` is for Stable-Baselines3 zips, but '{path}' is not one.")
    if threads is not None and kind != "onnx":
        raise UserError(f"`threads` is for exported files, but '{path}' is not one.")
    if kind == "onnx":
        return ExportedPolicy(Path(path), options, 1 if threads is None else threads, trust)
    if kind == "run":
        from shoal.policies.run import load_run

        return load_run(Path(path), options, trust, warn, str(checkpoint))
    from shoal.policies.stable_baselines import load_zip

    return load_zip(Path(path), options, normaliser, trust, warn)
