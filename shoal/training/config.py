"""The configuration of a run: a typed dataclass that is the Python API, the command line and config.json at once."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from shoal.algorithms.config import ALWAYS, OWN, OWN_SETTINGS, PAPER, LearnConfig, Own, json_object
from shoal.errors import UserError, counted, printable
from shoal.runs.settings import StoredConfig, read_settings
from shoal.training.presets import TUNED
from shoal.trust import check_importable, env_name

if TYPE_CHECKING:
    from shoal.envs.base import EnvSpec
    from shoal.runs.checkpoint import Checkpoint


@dataclass(frozen=True)
class WorldConfig:
    """The world: which one, how many agents and copies."""

    env: str = "cooperative-navigation"
    """cooperative-navigation, predator-prey, pettingzoo:MODULE (pettingzoo:mpe2.simple_tag_v3), gym:ID,
    dm:DOMAIN/TASK (dm:humanoid/stand), or gym:MODULE:CLASS, pettingzoo:MODULE:CLASS and shoal:MODULE:CLASS (a
    VectorEnv) for your own. From Python also the class, or a function that makes the environment, itself."""
    agents: int | None = None
    """Number of trained agents (predators in predator-prey); None: 3, or as many as the environment has."""
    copies: int = 25
    """Number of copies of the world that are stepped together."""
    rules: Literal["mpe2", "openai"] = "mpe2"
    """Rules of the particle worlds: order of integration, rewards, directions of actions."""
    episode_length: int | None = None
    """Steps per episode; None: 25, or the environment's own limit."""
    stagger: bool = True
    """Start the copies at different steps of their first episode, so that they do not all end together."""
    landmarks: int | None = None
    """cooperative-navigation: number of landmarks; None: as many as agents."""
    prey: Literal["scripted", "facmac", "learned", "random"] = "scripted"
    """predator-prey: policy of the prey."""
    prey_count: int | None = None
    """predator-prey: number of prey; None: a third of the predators, at least 1."""
    obstacles: int | None = None
    """predator-prey: number of obstacles; None: a third of the predators, at least 2."""
    prey_scale: float | None = None
    """predator-prey with facmac prey: force of the prey, 1 or 4; None: 1."""
    entities: Own[Literal["index", "distance"]] = OWN
    """Order in which agents of a particle world see landmarks, other agents and prey: by index as in the papers, or by
    distance (nearest first), with which teams learn faster."""
    env_options: str = ""
    """PettingZoo, Gymnasium, dm_control and your own worlds: constructor arguments as a JSON object."""
    env_masks: bool = False
    """PettingZoo and Gymnasium: apply the action_mask in the environment's infos; one in a Dict observation is always
    applied."""


@dataclass(frozen=True)
class RunConfig:
    """Length of a run, hardware and output."""

    preset: Literal["papers", "tuned"] = "papers"
    """What settings are that are not given: the papers' (of each algorithm), or those that were found to learn best in
    the particle worlds (maddpg)."""
    episodes: int = 60_000
    """Episodes to train for, over all copies. With --resume: the new total."""
    seed: int = 0
    """Random seed."""
    implementation: Literal["engine", "reference"] = "engine"
    """Shoal's own implementation, or the papers' baseline, which is slow."""
    update: Literal["auto", "native", "torch"] = "auto"
    """What learns and acts: native code (maddpg and masac in full precision on a CPU) or torch; auto: native where it
    can. config.json records which it was."""
    device: str = "cpu"
    """Torch device of the networks: cpu, cuda, cuda:1, …"""
    threads: int | None = None
    """CPU threads; None: all that the process may use, with torch only as many as an update keeps busy. The native
    update gives the same bits with any number."""
    out: str | None = None
    """Run folder; None: a new one under runs/."""
    env_workers: int | None = None
    """PettingZoo, Gymnasium and dm_control: processes that share the copies of a slow environment; None or 1: this
    process alone. Results do not depend on it."""
    log_every: int = 100
    """Episodes per line of metrics.jsonl, at most 100."""
    checkpoint_every: int = 1_000
    """Episodes between checkpoints; 0: only when the run ends or is interrupted."""
    keep_replay: bool = False
    """Keep the replay ring of a finished run, so that --resume with more --episodes continues it exactly."""
    evaluate_episodes: int = 200
    """Evaluation episodes of the trained and of a random team at the end; 0: none."""
    evaluate_every: int = 0
    """Training episodes between deterministic evaluations; the best weights are kept (--checkpoint best of evaluate,
    export, quantize and watch). Training has the same results with and without them. 0: none."""
    evaluate_during: int = 20
    """Episodes of each of these evaluations, on the same initial states every time."""
    stop_at_return: float | None = None
    """End the run once an evaluation (--evaluate-every) has at least this mean return; None: never."""
    snapshots: int = 0
    """Files of weights alone, evenly spaced over the run, for watching a team learn (--checkpoint EPISODE of evaluate,
    export, quantize and watch); 0: none."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    track: Literal["none", "wandb", "mlflow"] = "none"
    """Also log metrics, settings and results to Weights & Biases or MLflow (needs the extra track)."""
    track_project: str = "shoal"
    """Weights & Biases project or MLflow experiment; the run is named after its folder, its group after the parent."""


@dataclass(frozen=True)
class PrecisionConfig:
    """Precision of the networks' arithmetic."""

    qat_bits: int | None = None
    """Quantization-aware training: bits of the networks' weights and activations, 2 to 8; None: off."""
    quant_delay: float = 0.5
    """Quantization-aware training: fraction of the episodes after which quantization starts; ranges are observed
    from the beginning."""
    qat_critics: bool = True
    """Quantization-aware training: quantize the critics as well, as in the paper; they are not deployed, and
    --no-qat-critics mostly gives better returns."""
    qat_agent: int | None = None
    """Quantization-aware training: only this agent's actor, counted from 0, and no critics; None: all agents."""
    scheme: str | None = None
    """Train in low precision, emulated bit by bit: a MAC unit for all products, e.g. E5M2:5+E6M5, or a scheme, e.g.
    hfp8; None: float32. See docs/schemes.md."""
    scheme_networks: Literal["all", "actors", "critics"] = "all"
    """Networks whose products go through the scheme; all optimizers have its loss scale and update."""
    loss_scale: str = "none"
    """Loss scale of a scheme: none, a number, dynamic (PyTorch's rules) or adaptive."""


@dataclass(frozen=True)
class ActorConfig:
    """Actors in processes of their own, and how they and the learner keep pace."""

    actors: int = 0
    """Actor processes that play while the learner learns; 0: one loop that plays and learns in turn."""
    actor_engine: Literal["auto", "onnx", "numba", "native", "torch"] = "auto"
    """Inference engine of the actors; auto: the fastest on this machine (onnx with --lockstep)."""
    actor_precision: Literal["float32", "float16", "int8"] = "float32"
    """Precision in which actors compute."""
    broadcast_bits: int | None = None
    """Bits per weight sent to the actors: 32, 16, 8, 6, 4 or 2; None: 8 for int8 actors, else 32."""
    actor_bias_correction: bool = False
    """Correct the biases of every quantized version on recent states, so that its mean pre-activations stay those of
    full precision."""
    pull_every: int = 1_000
    """Steps that an actor plays before it pulls the newest version of the policy."""
    samples_per_insert: float | None = None
    """Times that a transition is sampled on average; None: batch / update_every."""
    error_buffer: float | None = None
    """Samples that the learner may be ahead of that ratio, or behind; None: a tenth of the warm-up's samples."""
    max_times_sampled: int | None = None
    """Times that a transition may be sampled at most; None: no limit."""
    lockstep: bool = False
    """Actors and learner take turns in fixed rounds: slower, but reproducible."""
    cluster: str | None = None
    """Ray cluster that runs the actors: local, or the HOST:PORT of one; None: processes on this machine."""


RANGES: dict[str, tuple[float, float | None]] = {
    "episodes": (1, 2**40), "seed": (0, 2**62), "copies": (1, 2**20), "log_every": (1, 100),
    "checkpoint_every": (0, None), "evaluate_episodes": (0, 10**7), "evaluate_every": (0, None),
    "evaluate_during": (1, 10**7), "snapshots": (0, 10_000), "threads": (1, None), "env_workers": (1, 1024),
    "qat_bits": (2, 8), "quant_delay": (0, 1), "qat_agent": (0, None),
    "actors": (0, 1024), "pull_every": (1, 2**40), "samples_per_insert": (1e-6, 1e6), "error_buffer": (0, None),
    "max_times_sampled": (1, 2**16 - 1),
}  # fmt: skip
"""Smallest and largest values of settings."""
OF_EVALUATIONS = ("evaluate_during", "stop_at_return")
OF_QAT = ("qat_agent", "quant_delay", "qat_critics")
OF_SCHEMES = ("loss_scale", "scheme_networks")
OF_TRACKING = ("track", "track_project")
OF_ACTORS = tuple(field.name for field in dataclasses.fields(ActorConfig) if field.name != "actors")
"""Settings that only mean something together with another one."""
OF_REFERENCE: dict[str, Any] = {
    "preset": "papers", "n_step": 1, "target_period": 1, "critic_hidden": None, "critic": "joint", "entities": "index",
    "share": "none", "layer_norm": False, "normalize_observations": False, "normalize_rewards": False,
    "learning_rate_schedule": "constant", "qat_bits": None, "scheme": None, "actors": 0,
}  # fmt: skip
"""The only values that the papers' baseline has."""


@dataclass(frozen=True)
class TrainConfig(RunConfig, ActorConfig, PrecisionConfig, LearnConfig, WorldConfig, StoredConfig):
    """All settings of a training run."""

    result_independent: ClassVar = StoredConfig.result_independent | {"cluster", "env_workers", *OF_TRACKING}
    changeable: ClassVar = frozenset(
        {"episodes", "evaluate_every", "evaluate_during", "stop_at_return", "snapshots", "keep_replay"}
    )
    before: ClassVar = MappingProxyType[str, Any]({"update": "torch"})
    ranges: ClassVar = RANGES

    def __post_init__(self) -> None:
        """Put the preset's or the algorithm's own settings in place of None, but not a second pace beside samples per
        insert.

        A class as the environment becomes its name.
        """
        object.__setattr__(self, "env", env_name(self.env))
        given = self.update_every is not None
        chosen = TUNED.get((self.algorithm, self.env), {}) if self.preset == "tuned" else {}
        for name, value in ({"entities": "index"} | chosen).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        if not given and self.samples_per_insert is not None:
            object.__setattr__(self, "update_every", None)

    @property
    def pace(self) -> float:
        """Transitions sampled per transition inserted."""
        return self.batch / self.update_every if self.samples_per_insert is None else self.samples_per_insert

    @property
    def samples_per_update(self) -> int:
        """Samples (steps of one copy) between two updates, to the nearest whole one."""
        return self.update_every or max(1, round(self.batch / self.pace))

    @property
    def world_options(self) -> dict[str, Any]:
        """`env_options` as a dictionary."""
        return json_object("env_options", self.env_options)

    @property
    def code(self) -> list[tuple[str, str]]:
        """Names of its world and of its third-party algorithm and sampler, each with its options."""
        others = ((self.algorithm, self.algorithm_options), (self.sampler, self.sampler_options))
        third_party = [(f"shoal:{name}", options) for name, options in others if ":" in name]
        return [(self.env, self.env_options), *third_party]

    def why_torch(self, spec: "EnvSpec | None" = None) -> str | None:
        """Why only torch can learn in this run, as far as its settings and its world tell; None if native code can."""
        if spec is not None and spec.choices:
            return "native code supports one choice per agent, or boxes"
        if self.implementation == "reference":
            return "the papers' baseline learns in torch"
        if self.qat_bits is not None:
            return "quantization-aware training is in torch"
        if self.scheme is not None:
            return "schemes emulate torch's products"
        if self.device != "cpu":
            return f"`device` is {self.device}, and native code runs on the CPU"
        if self.algorithm not in ("maddpg", "masac"):
            return f"there is no native update for {self.algorithm}"
        return "native code has no layer normalization" if self.layer_norm else None

    # ---- checks ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting; the world checks its own."""
        LearnConfig.check(self)
        StoredConfig.check(self)
        if self.preset == "tuned" and (self.algorithm, self.env) not in TUNED:
            known = ", ".join(f"{algorithm} in {world}" for algorithm, world in TUNED)
            raise UserError(f"`preset=tuned` has settings for {known}, not for {self.algorithm} in {self.env}.")
        if self.stop_at_return is not None and not math.isfinite(self.stop_at_return):
            raise UserError(f"`stop_at_return` is {self.stop_at_return}, but must be a finite number.")
        if self.actors or (self.env_workers or 1) > 1:
            check_importable("env", self.env, "actors" if self.actors else "workers")
        if self.qat_bits is None:
            self._check_defaults(OF_QAT, "quantization-aware training, but `qat_bits` is not given")
        elif self.qat_agent is not None and self.shared_actors:
            raise UserError(
                f"`qat_agent` and `share={self.share}` cannot be used together: agents that share an actor are "
                "quantized together."
            )
        if self.scheme is None:
            self._check_defaults(OF_SCHEMES, "training in low precision, but `scheme` is not given")
        else:
            self._check_scheme(self.scheme)
        if self.actors:
            self._check_actors()
        else:
            self._check_defaults(OF_ACTORS, "runs with actors, but `actors` is 0")
        if self.implementation == "reference":
            self._check_reference()
        elif self.sampler in ("neighbor-v1", "neighbor-v2"):
            raise UserError(f"`sampler={self.sampler}` needs `implementation=reference`; the engine has neighbor.")
        if self.update == "native" and (reason := self.why_torch()) is not None:
            raise UserError(f"`update` is native, but {reason}; leave it out, or use `update=torch`.")

    def _check_defaults(self, names: Collection[str], purpose: str) -> None:
        """Refuse settings that have no effect here."""
        for name in names:
            if getattr(self, name) != getattr(TrainConfig, name):
                raise UserError(f"`{name}` is for {purpose}.")

    def check_evaluated(self, names: Collection[str] = OF_EVALUATIONS) -> None:
        """Refuse these settings of evaluations where there are none.

        Not part of `check`: a run that is resumed without evaluations keeps the settings that it had for them.
        """
        if not self.evaluate_every:
            names = [name for name in OF_EVALUATIONS if name in names]
            self._check_defaults(names, "evaluations during training, but `evaluate_every` is 0")

    def _check_scheme(self, text: str) -> None:
        """Refuse unknown schemes, and what they cannot be combined with."""
        from shoal.numerics.schemes.loss_scale import parse_loss_scale
        from shoal.numerics.schemes.scheme import parse_scheme

        scheme = parse_scheme(text)
        parse_loss_scale(self.loss_scale)
        if scheme.average_after is not None:
            raise UserError(f"`scheme={text}` averages weights, which teams do not; add '; average_after=never' to it.")
        if self.scheme_networks == "critics" and self.algorithm == "dqn":
            raise UserError("`scheme_networks` is critics, but dqn has only its Q networks; use actors or all.")
        if self.qat_bits is not None:
            raise UserError("`scheme` and `qat_bits` cannot be used together.")
        if self.device != "cpu":
            raise UserError(f"`scheme` is emulated on the CPU, but `device` is {self.device}.")

    def _check_actors(self) -> None:
        """Refuse invalid settings of actors, and what they cannot be combined with."""
        if self.samples_per_insert is not None:
            self._check_pace(self.samples_per_insert)
        if self.max_times_sampled is not None and self.sampler != "uniform":
            raise UserError(f"`max_times_sampled` works with `sampler=uniform`, but `sampler` is {self.sampler}.")
        if self.broadcast_bits not in (None, 32, 16, 8, 6, 4, 2):
            raise UserError(f"`broadcast_bits` is {self.broadcast_bits}, but must be 32, 16, 8, 6, 4 or 2.")
        if self.actor_precision == "int8" and self.broadcast_bits not in (None, 8):
            raise UserError(
                f"`broadcast_bits` is {self.broadcast_bits}, but int8 actors take the 8-bit codes that they play with."
            )
        if self.actor_bias_correction and self.actor_precision != "int8" and (self.broadcast_bits or 32) >= 16:
            raise UserError(
                "`actor_bias_correction` is for int8 actors or `broadcast_bits` of 8 and below: other weights are not "
                "rounded to codes."
            )
        if self.cluster is not None:
            self._check_cluster(self.cluster)
        able = {"torch": "float32", "numba": "float32", "native": "int8"}.get(self.actor_engine)
        if able not in (None, self.actor_precision):
            raise UserError(f"`actor_engine={self.actor_engine}` computes in {able}, not {self.actor_precision}.")
        if (self.env_workers or 1) > 1:
            raise UserError("`actors` and `env_workers` cannot be used together: actors are such processes already.")
        if self.qat_bits is not None:
            raise UserError("`actors` and `qat_bits` cannot be used together: actors quantize by themselves.")
        for name in ("normalize_observations", "normalize_rewards"):
            if getattr(self, name):
                raise UserError(
                    f"`actors` and `{name}` cannot be used together: statistics are collected in one process."
                )

    def _check_pace(self, samples_per_insert: float) -> None:
        """Refuse a pace that differs from that of the updates."""
        every = self.update_every
        if every is not None and not math.isclose(self.batch / every, samples_per_insert, rel_tol=1e-9):
            raise UserError(
                f"`samples_per_insert` is {samples_per_insert:g}, but `batch={self.batch}` per "
                f"`update_every={every}` makes {self.batch / every:g}; leave one of them out."
            )
        rounded = self.batch / self.samples_per_update
        if self.lockstep and not math.isclose(rounded, samples_per_insert, rel_tol=1e-9):
            raise UserError(
                f"`samples_per_insert` is {samples_per_insert:g}, but with `lockstep` it must be `batch={self.batch}` "
                f"divided by a whole number, e.g. {rounded:g}."
            )

    def _check_cluster(self, cluster: str) -> None:
        """Refuse an invalid address, and what a cluster does not have."""
        host, _, port = cluster.rpartition(":")
        named = host and not set(host) & set("/ \t\n") and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
        if cluster != "local" and not named:
            raise UserError(f"`cluster` is '{printable(cluster)}', but must be local or HOST:PORT, e.g. 10.0.0.1:6379.")
        if self.lockstep:
            raise UserError("`lockstep` and `cluster` cannot be used together: actors of a cluster are never in step.")

    def _check_reference(self) -> None:
        """Refuse what the papers' baseline does not have."""
        lacks = ["algorithm"] * (self.algorithm not in ("maddpg", "masac")) + ["sampler"] * (":" in self.sampler)
        for name in lacks + [name for name, value in OF_REFERENCE.items() if getattr(self, name) != value]:
            value = getattr(self, name)
            asked = f"`{name}={value}`" if isinstance(value, str) else f"`{name}`"
            raise UserError(f"{asked} needs `implementation=engine`; the reference does not have it.")

    # ---- stored and resumed ----------------------------------------------------------------------------------------

    @classmethod
    def stored(cls, fields: Mapping[str, Any]) -> Self:
        """The configuration with these stored settings; runs with actors once stored `auto` as their update.

        Settings that a stored third-party algorithm lacks have the papers' values, because its code is not run.
        """
        if fields.get("algorithm", "maddpg") not in OWN_SETTINGS:
            fields = {**fields, **{name: PAPER[name] for name in ALWAYS if fields.get(name) is None}}
        config = super().stored(fields)
        if config.update != "auto":
            return config
        return dataclasses.replace(config, update="torch" if config.why_torch() else "native")

    @property
    def settled_later(self) -> frozenset[str]:
        """Settings that a run chooses or fixes when it is built; its config.json then has other values for them."""
        names = {"copies", "minibatch"} if self.implementation == "reference" else set()
        return frozenset(names | {"update"} if self.update == "auto" else names)

    def defaults(self) -> Self:
        """The settings of this algorithm, where nothing but the algorithm was chosen."""
        return dataclasses.replace(type(self)(algorithm=self.algorithm), algorithm=TrainConfig.algorithm)

    def resumed(self, asked: Mapping[str, Any], checkpoint: "Checkpoint | None") -> Self:
        """The stored settings with the changes that a resume asks for; too few episodes are refused."""
        config = super().resumed(asked, checkpoint)
        config.check_evaluated(asked)
        done = 0 if checkpoint is None else checkpoint.meta["episodes"]
        if config.episodes != self.episodes and config.episodes < done:
            raise UserError(
                f"`episodes` is {config.episodes:,}, but the run in '{config.out}' has already had "
                f"{counted(done, 'episode')}: it is the new total."
            )
        if checkpoint is not None and config.extends(checkpoint) and config.actors and "replay" not in checkpoint.parts:
            raise UserError(
                f"The run in '{config.out}' had `actors` but not `keep_replay`: its ring is gone, and it cannot be "
                "extended."
            )
        return config

    def extends(self, checkpoint: "Checkpoint") -> bool:
        """Whether these settings let a run continue that was finished with the settings in its checkpoint."""
        before, meta = checkpoint.meta["settings"], checkpoint.meta
        over = meta["episodes"] >= before["episodes"] or meta.get("stopped") is not None
        changed = any(before.get(name) != getattr(self, name) for name in ("episodes", "stop_at_return"))
        return over and self.episodes > meta["episodes"] and changed


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a team's run folder; `check_settings` compares it with the checkpoint's."""
    return read_settings(folder, TrainConfig)
