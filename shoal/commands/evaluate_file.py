"""`shoal evaluate policy.onnx`: an exported policy's returns, played by ONNX Runtime alone; imports no torch."""

import dataclasses
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shoal.algorithms.config import option
from shoal.arguments import parse
from shoal.console import print_json, print_rows, progress_bar
from shoal.errors import UserError, check_range, counted
from shoal.processors import check_threads
from shoal.training.config import TrainConfig, WorldConfig
from shoal.trust import check_trusted

if TYPE_CHECKING:
    from shoal.envs.base import VectorEnv
    from shoal.inference.file import PolicyFile


def is_policy_file(argv: list[str]) -> bool:
    """Whether these words ask for a policy's file rather than a run."""
    named = any(word.lower().endswith((".onnx", ".zip")) for word in argv if not word.startswith("-"))
    return (named and not os.path.isdir(argv[0])) or (bool(argv) and os.path.isfile(argv[0]))


def check_kind(name: str) -> None:
    """Refuse a Stable-Baselines3 zip with the commands that read it."""
    if zipfile.is_zipfile(name) or (name.lower().endswith(".zip") and os.path.isfile(name)):
        raise UserError(
            f"'{name}' is a zip, but `shoal evaluate` plays run folders and ONNX files: `shoal quantize` evaluates a "
            "Stable-Baselines3 zip, and `shoal export` makes an ONNX file of it."
        )


def evaluate(argv: list[str]) -> int:
    """Returns of an exported policy beside a random team, played by ONNX Runtime alone.

    shoal evaluate policy.onnx
    shoal evaluate policy.onnx --env gym:Pendulum-v1 --episodes 1000 --json
    """
    import tyro

    @dataclass(frozen=True)
    class EvaluateCommand:
        policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY.onnx")]
        """File that `shoal export` wrote."""
        env: str = ""
        """World to play in; none: the one that it was trained in."""
        agents: int | None = None
        """Agents of the world, where it has a choice; None: as in training."""
        episode_length: int | None = None
        """Steps of an episode; None: as in training, or the environment's own limit."""
        env_options: str = ""
        """PettingZoo and Gymnasium: the constructor's arguments as a JSON object."""
        episodes: int = 200
        """Episodes that each team plays."""
        seed: int = 1
        """Decides the starts of the episodes and all noise."""
        threads: int = 1
        """Processor threads of ONNX Runtime."""
        trust: bool = False
        """Let third-party code run that the file names as its environment; one that --env names is trusted."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(EvaluateCommand, evaluate, argv)
    check_range("--seed", command.seed, 0, 2**62)
    check_range("--episodes", command.episodes, 1, 10**7)
    check_threads(command.threads)
    from shoal.inference.file import PolicyFile
    from shoal.training.play import play, random_act

    check_kind(command.policy)
    policy = PolicyFile(Path(command.policy), command.threads, command.seed)
    named = {name: getattr(command, name) for name in ("env", "agents", "episode_length", "env_options")}
    said = {name: value for name, value in named.items() if value not in (None, "")}
    if policy.facts.get("image") and (idle := sorted(said.keys() - {"env"})):
        raise UserError(f"{option(idle[0])} has no effect on an environment of images; leave it out.")
    config = world_of(policy.facts, said, command.trust, f"'{command.policy}'")
    copies = min(command.episodes, 8 if policy.facts.get("image") else 100)
    results = {}
    with progress_bar("shoal evaluate", 2 * command.episodes) as advance:
        for name in ("exported", "random"):
            env = world_for(policy, config, copies, command.seed)
            try:
                policy.check_fits(env.spec)
                act = policy.play if name == "exported" else random_act(env.spec, command.seed)
                results[name] = play(env, act, command.episodes, advance)
            finally:
                env.close()
    exported, random = results["exported"], results["random"]
    if command.json:
        print_json(
            {
                "policy": command.policy,
                "precision": policy.precision,
                "env": config.env,
                "episodes": exported.episodes,
                "return_mean": exported.mean,
                "return_ci95": exported.ci95,
                "return_prey": exported.prey_mean,
                "return_random": random.mean,
                "return_random_ci95": random.ci95,
            }
        )
        return 0
    rows = [
        {"team": label, "return per agent": result.mean, "± 95 %": result.ci95}
        for label, result in ((f"exported, {policy.precision}", exported), ("random team", random))
    ]
    print_rows(f"Return of an episode in {config.env}, {counted(command.episodes, 'episode')} each", rows)
    return 0


def world_of(facts: Mapping[str, Any], said: Mapping[str, Any], trust: bool, what: str) -> TrainConfig:
    """The settings of the world: what was said, and in the world of the training also what is in the file."""
    held = facts.get("world") or {}
    known = {field.name for field in dataclasses.fields(WorldConfig)}
    if not isinstance(held, dict) or not held.keys() <= known:
        held = {}
    env = str(said.get("env") or held.get("env") or "")
    if f"gym:{env}" == held.get("env"):  # as `shoal export --env` takes it
        env = f"gym:{env}"
    if not env:
        raise UserError("The file does not say which world it was trained in; name one with --env.")
    if env != held.get("env"):
        held = {}
    unsaid = {name: "" if name in said else str(held.get(name) or "") for name in ("env", "env_options")}
    check_trusted(what, unsaid["env"], unsaid["env_options"], trust)
    return TrainConfig(**{**held, **said, "env": env}).checked()


def world_for(policy: "PolicyFile", config: TrainConfig, copies: int, seed: int) -> "VectorEnv":
    """The world as the policy sees it: in numbers, or in images that are laid flat."""
    image = policy.facts.get("image")
    if not image:
        from shoal.training.play import build_env

        return build_env(config, copies, seed, stagger=False)
    from shoal.envs.pixels import make_pixels

    env, shape = make_pixels(config.env, image[0], copies, seed)
    if list(shape) != list(image):
        env.close()
        raise UserError(f"The policy sees images of {image}, but those of {config.env} are {list(shape)}.")
    return env
