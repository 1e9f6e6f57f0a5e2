"""`shoal export`: a run's trained team as one ONNX file or one an agent, or a Stable-Baselines3 model as one."""

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from shoal.arguments import parse
from shoal.commands.quantize import run_or_zip, subject_of
from shoal.console import output_file, print_json, print_rows, progress_bar, put, quoted, say
from shoal.errors import UserError, check_range
from shoal.trust import untrusted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.algorithms.team import Team
    from shoal.inference.layers import Array
    from shoal.inference.policy import Policy
    from shoal.quantization.export import Exported
    from shoal.training.config import TrainConfig
    from shoal.training.subjects import ModelSubject

STATES = 512
"""States that an export is checked and calibrated with."""


def export(argv: list[str]) -> int:
    """Write a trained policy as an ONNX file that maps raw observations to the environment's actions.

    shoal export runs/hunt --precision int8 --out hunt.onnx
    shoal export runs/hunt --precision packed --bits 4 --out hunt.onnx --each
    shoal export ppo.zip --env CartPole-v1 --precision static-int8 --json
    """
    import tyro

    @dataclass(frozen=True)
    class ExportCommand:
        policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN-OR-ZIP")]
        """Run folder, or a zip that Stable-Baselines3 saved (A2C, PPO, DQN, DDPG)."""
        precision: Literal["float32", "float16", "int8", "static-int8", "packed"] = "float32"
        """float16: weights only; int8: every state by its own scale; static-int8: scales from states of the policy's;
        packed: weights of few bits, for storage."""
        bits: int | None = None
        """Bits of the weights: 2 to 7 if packed (None: as trained for, else 4), 2 to 8 in int8 and static-int8 (None:
        7, or 8 where this processor has VNNI: without it products of 8 bits saturate, so say 7 for a file that goes to
        another machine)."""
        out: str = "policy.onnx"
        """File to write; with --each the agents' names are put before its ending."""
        each: bool = False
        """One file an agent instead of one for the team."""
        single: bool = False
        """For one state at a time: int8 products are then fused."""
        sample: bool = False
        """Draw choices by their probabilities, with uniform numbers as a second input, instead of the most likely."""
        tolerance: float | None = None
        """Largest mean error of an action, as part of its range; None: by precision."""
        seed: int = 0
        """Decides the states that are played where the run has none on disk."""
        env: str = ""
        """The environment of a zip's model, e.g. CartPole-v1."""
        normaliser: str = ""
        """A zip's observation normaliser (VecNormalize) as .npz or .safetensors; as .pkl only with --trust."""
        trust: bool = False
        """Let third-party code run: let Stable-Baselines3 load the zip itself (custom classes need that), or let a run
        play in the environment that it names (gym:MODULE:ID, pettingzoo:MODULE)."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ExportCommand, export, argv)
    check_range("--seed", command.seed, 0, 2**62)
    if command.tolerance is not None:
        check_range("--tolerance", command.tolerance, 0, 1)
    if command.bits is not None:
        check_range("--bits", command.bits, 2, 8)
    path = output_file("--out", command.out, ".onnx")
    source_path = run_or_zip(command.policy)
    with progress_bar("shoal export", 2) as advance:
        if source_path.is_file():
            if command.each:
                raise UserError("--each is for runs of teams; the model of a zip is one agent.")
            jobs, source = [model_job(command.policy, command.env, command.normaliser, command.trust, command.sample,
                                      path, command.seed)], "played"  # fmt: skip
        else:
            if command.env or command.normaliser:
                raise UserError("--env and --normaliser are for zips; a run knows its own world.")
            jobs, source = run_jobs(source_path, path, command.each, command.sample, command.seed, command.trust)
        advance(1, "checking")
        form = command.precision, command.bits, command.single, command.tolerance
        exported = write(jobs, *form, {"exported_from": command.policy, "states_from": source})
    if command.precision == "int8":
        say_int8(jobs, command.bits)
    if command.json:
        files = [dataclasses.asdict(one) | {"states_from": source} for one in exported]
        print_json({"policy": command.policy, "files": files})
        return 0
    print_exports(exported, source)
    if len(exported) == 1:
        world = jobs[0].policy.metadata["world"]
        trust = " --trust" if untrusted(world["env"], world.get("env_options", "")) else ""
        put(f"play it with: shoal evaluate {quoted(exported[0].path)}{trust}")
    return 0


def say_int8(jobs: list["Job"], bits: int | None) -> None:
    """What may be better than what was asked for; told once nothing can be refused any more."""
    from shoal.inference.codes import has_vnni

    if bits == 8 and not has_vnni():
        say("Products of 8-bit weights saturate on processors without VNNI, as this one: 7 bits are safe everywhere.")
    if not all(job.policy.linear_only for job in jobs):
        say("Convolutions that scale every state by itself are slower than float32's; static-int8 is faster.")


class Job(NamedTuple):
    """One file to be written."""

    policy: "Policy"
    path: Path
    states: "Array"  # (B, N, O)
    outputs: "NDArray[np.floating]"  # (B, N, U), as PyTorch computes them for the states


def write(
    jobs: list[Job],
    precision: Any,
    bits: int | None = None,
    single: bool = False,
    tolerance: float | None = None,
    facts: dict[str, Any] | None = None,
) -> list["Exported"]:
    """All files of an export, written once all are checked against PyTorch."""
    from shoal import __version__
    from shoal.files import write_whole
    from shoal.quantization.export import checked

    facts = {"shoal_version": __version__, **(facts or {})}
    found = [checked(*job[:2], precision, *job[2:], bits, single, tolerance, facts) for job in jobs]
    for job, (_, content) in zip(jobs, found, strict=True):
        write_whole(job.path, content, "the policy")
    return [exported for exported, _ in found]


def run_jobs(
    folder: Path, path: Path, each: bool, sample: bool, seed: int, trust: bool = False
) -> tuple[list[Job], str]:
    """The files for a run, and where the states are from that they are checked with."""
    from shoal.training.evaluation import load_team

    team, config = load_team(folder, say, trust)
    team_policy(team, config, each, sample)  # what is wrong with it is told before it plays
    states, source = states_of_run(folder, team, config, seed)
    return team_jobs(team, config, path, states, each, sample), source


def team_policy(team: "Team", config: "TrainConfig", each: bool, sample: bool) -> tuple["Policy", int | None]:
    """The team's policy, and the one agent whose numbers are frozen if it is not all."""
    from shoal.quantization.export import from_team
    from shoal.quantization.qat import only_network
    from shoal.training.config import WorldConfig

    world = {field.name: getattr(config, field.name) for field in dataclasses.fields(WorldConfig)}
    metadata = {"env": config.env, "world": world, "algorithm": config.algorithm}
    policy = replace(from_team(team, sample=sample, one_agent=each), metadata=metadata).check()
    return policy, only_network(team.rollout_actors)


def team_jobs(
    team: "Team", config: "TrainConfig", path: Path, states: "Array", each: bool = False, sample: bool = False
) -> list[Job]:
    """The team in one file, or one an agent."""
    from shoal.quantization.export import each_agent, raw_states, team_outputs

    policy, only = team_policy(team, config, each, sample)
    outputs, states = team_outputs(team, states), raw_states(policy, states)
    if not each:
        return [Job(policy, path, states, outputs)]
    names = [path.with_name(f"{path.stem}-{file_name(agent)}{path.suffix}") for agent in policy.agent_names]
    if len(set(names)) < len(names):
        raise UserError("Two agents of the team would have the same file: their names differ by odd letters only.")
    return [
        Job(
            alone,
            names[n],
            states[:, n : n + 1, : alone.observation_size].copy(),
            outputs[:, n : n + 1, : alone.action_size],
        )
        for n, alone in enumerate(each_agent(policy, only))
    ]


def model_job(zip_name: str, env: str, normaliser: str, trust: bool, sample: bool, path: Path, seed: int) -> Job:
    """The file for a Stable-Baselines3 model, checked with states that it meets in its environment."""
    from shoal.inference import Head
    from shoal.quantization.export import raw_states
    from shoal.training.subjects import ModelSubject

    subject = subject_of(zip_name, env, normaliser, trust)
    assert isinstance(subject, ModelSubject)
    policy = subject.policy()
    world = {"env": subject.env}
    policy = replace(policy, metadata={**policy.metadata, "env": subject.env, "world": world})
    if sample:
        if not policy.head.discrete or subject.model.algorithm == "dqn":
            raise UserError("Only the choices of A2C and PPO can be drawn by their probabilities; leave --sample out.")
        policy = replace(policy, head=Head("categorical"))
    states = model_states(subject, seed)
    return Job(policy, path, raw_states(policy, states), subject.outputs(states))


def model_states(subject: "ModelSubject", seed: int) -> "Array":
    """(B, 1, O) states of episodes in which every fifth action is a random one."""
    import numpy as np
    import torch

    from shoal.training.play import random_act

    copies = min(16, subject.most_copies)
    env = subject.make_env(copies, seed)
    rng, at_random = np.random.default_rng(seed), random_act(env.spec, seed)
    observation = env.reset()
    seen = [observation.copy()]
    with torch.inference_mode():
        while len(seen) * copies < STATES:
            actions = subject.actions(subject.head(subject.network, observation))
            actions = np.where(rng.random((copies, 1, 1)) < 0.2, at_random(observation), actions)
            observation = env.step(actions).observation
            seen.append(observation.copy())
    env.close()
    return np.concatenate(seen)


def file_name(agent: str) -> str:
    """An agent's name with nothing that a file cannot have."""
    return "".join(letter if letter.isalnum() or letter in "_-." else "-" for letter in agent)


def states_of_run(folder: Path, team: "Team", config: "TrainConfig", seed: int) -> tuple["Array", str]:
    """(B, N, O) states that the team met, and where they are from: the run's replay, or played now with its noise."""
    import numpy as np

    from shoal.training.checkpoint import newest_segment

    rng = np.random.default_rng(seed)
    held = newest_segment(folder / "checkpoints")
    if held is not None:
        rows = held["rows"][rng.integers(len(held["rows"]), size=STATES)]
        return stored_observations(rows, team.spec.agents, team.spec.observation_size, config.storage), "replay"
    return played_states(team, config, seed, rng), "played"


def stored_observations(rows: "NDArray[np.uint32]", agents: int, size: int, storage: str) -> "Array":
    """(B, N, O) of the ring's rows, whose first words are the observations."""
    import numpy as np

    count = agents * size
    if storage == "float32":
        values = np.ascontiguousarray(rows[:, :count]).view(np.float32)
    else:
        halves = np.ascontiguousarray(rows[:, : -(-count // 2)]).view(np.uint16)[:, :count]
        if storage == "float16":
            values = np.ascontiguousarray(halves).view(np.float16).astype(np.float32)
        else:
            values = (halves.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(values.reshape(-1, agents, size))


def played_states(team: "Team", config: "TrainConfig", seed: int, rng: "np.random.Generator") -> "Array":
    """(B, N, O) states of episodes that the team plays with the noise of training."""
    import numpy as np

    from shoal.training.play import build_env

    copies, steps = 16, 128
    env = build_env(config, copies, seed, stagger=True)
    observation = env.reset()
    seen = [observation.copy()]
    for _ in range(steps):
        observation = env.step(team.to_world(team.act(observation, explore=True))).observation
        seen.append(observation.copy())
    env.close()
    met = np.concatenate(seen)
    return met[rng.choice(len(met), STATES, replace=False)]


def print_exports(exported: list["Exported"], source: str) -> None:
    """What was written, and what was found out before."""
    rows = [
        {
            "file": one.path,
            "precision": one.precision,
            "bits": one.bits,
            "bytes": one.bytes,
            "of float32": one.bytes / one.float32_bytes,
            "mean error": one.error,
            "allowed": one.tolerance,
            "equal choices": one.agreement,
            "products in int8": one.int8_share,
        }
        for one in exported
    ]
    print_rows(f"Exported, checked on {exported[0].states} states ({source})", rows)
