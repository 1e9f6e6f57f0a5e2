"""The configuration of a run: a typed dataclass that is the Python API, the command line and config.json at once."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar

from shoal.algorithms.config import LearnConfig, as_declared
from shoal.errors import UserError, check_names, check_range, printable
from shoal.runs import disk
from shoal.trust import check_importable, env_name

CONFIG = "config.json"


@dataclass(frozen=True)
class StoredConfig:
    """A configuration that a run folder holds: checked, with a JSON form."""

    result_independent = frozenset({"out", "threads"})
    """Settings that may differ when a run is resumed."""
    changeable = frozenset[str]()
    """Settings that a resume may change for the rest of the run."""

    before = MappingProxyType[str, Any]({})
    """What runs did that were stored before a setting existed, where that is not the default."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Suggest a setting in place of an unknown one."""
        check_names(cls.__name__, settings, [field.name for field in dataclasses.fields(cls)])
        return super().__new__(cls)

    @classmethod
    def stored(cls, fields: Mapping[str, Any]) -> Self:
        """The configuration with these stored settings."""
        return cls(**{**cls.before, **fields})

    def checked(self) -> Self:
        """The same settings in their declared types; a `UserError` for the first invalid one."""
        config = as_declared(self)
        config.check()
        return config

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that determine a run's results, as JSON values."""
        held: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {name: value for name, value in held.items() if name not in self.result_independent}

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(disk.sealed(dataclasses.asdict(self)), indent=2) + "\n"


Stored = TypeVar("Stored", bound=StoredConfig)


@dataclass(frozen=True)
class WorldConfig:
    """The world: which one, how many agents and copies."""

    env: str = "cooperative-navigation"
    """cooperative-navigation, predator-prey, pettingzoo:MODULE (pettingzoo:mpe2.simple_tag_v3), gym:ID,
    dm:DOMAIN/TASK (dm:humanoid/stand), or gym:MODULE:CLASS and pettingzoo:MODULE:CLASS for your own. From Python also
    the class, or a function that makes the environment, itself."""
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
    env_options: str = ""
    """PettingZoo, Gymnasium and dm_control: constructor arguments as a JSON object."""


@dataclass(frozen=True)
class RunConfig:
    """Length of a run, hardware and output."""

    episodes: int = 60_000
    """Episodes to train for, over all copies. With --resume: the new total."""
    seed: int = 0
    """Random seed."""
    implementation: Literal["engine", "reference"] = "engine"
    """Shoal's engine, or the papers' baseline, which is slow."""
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
    """Train in few bits, emulated bit by bit: a MAC unit for all products, e.g. E5M2:5+E6M5, or a scheme, e.g. hfp8;
    None: float32. See docs/schemes.md."""
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


@dataclass(frozen=True)
class TrainConfig(RunConfig, ActorConfig, PrecisionConfig, LearnConfig, WorldConfig, StoredConfig):
    """All settings of a training run."""

    result_independent = StoredConfig.result_independent | {"cluster", "env_workers"}
    before = MappingProxyType[str, Any]({"update": "torch"})
    changeable = frozenset(
        {"episodes", "evaluate_every", "evaluate_during", "stop_at_return", "snapshots", "keep_replay"}
    )

    @classmethod
    def stored(cls, fields: Mapping[str, Any]) -> Self:
        """The configuration with these stored settings; runs with actors once stored `auto` as their update."""
        config = super().stored(fields)
        if config.update != "auto":
            return config
        return dataclasses.replace(config, update="torch" if config.why_torch() else "native")

    @property
    def settled_later(self) -> frozenset[str]:
        """Settings that a run chooses or fixes when it is built; its config.json then has other values for them."""
        names = {"copies", "minibatch"} if self.implementation == "reference" else set()
        return frozenset(names | {"update"} if self.update == "auto" else names)

    def __post_init__(self) -> None:
        """Put the algorithm's own settings in place of None, but not a second pace beside samples per insert.

        A class as the environment becomes its name.
        """
        object.__setattr__(self, "env", env_name(self.env))
        given = self.update_every is not None
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

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting; the world checks its own."""
        super().check()
        check_range("--episodes", self.episodes, 1, 2**40)
        check_range("--seed", self.seed, 0, 2**62)
        check_range("--copies", self.copies, 1, 2**20)
        check_range("--log-every", self.log_every, 1, 100)
        check_range("--checkpoint-every", self.checkpoint_every, 0)
        check_range("--evaluate-episodes", self.evaluate_episodes, 0, 10**7)
        self._check_milestones()
        if self.threads is not None:
            check_range("--threads", self.threads, 1)
        if self.env_workers is not None:
            check_range("--env-workers", self.env_workers, 1, 1024)
        if self.actors or (self.env_workers or 1) > 1:
            check_importable("env", self.env, "actors" if self.actors else "workers")
        if self.qat_bits is not None:
            check_range("--qat-bits", self.qat_bits, 2, 8)
            if self.implementation == "reference":
                raise UserError("--qat-bits needs --implementation engine; the reference has full precision only.")
        self._check_scheme()
        self._check_actors()
        if self.update == "native" and (reason := self.why_torch()) is not None:
            raise UserError(f"--update is native, but {reason}; leave it out, or use --update torch.")
        check_range("--quant-delay", self.quant_delay, 0, 1)
        if self.qat_agent is not None:
            check_range("--qat-agent", self.qat_agent, 0)
        for name in ("qat_agent", "quant_delay", "qat_critics"):
            if self.qat_bits is None and getattr(self, name) != getattr(PrecisionConfig, name):
                raise UserError(f"`{name}` is for quantization-aware training, but --qat-bits is not given.")
        if self.implementation == "reference":
            self._check_reference()
        if self.implementation == "engine" and self.sampler in ("neighbor-v1", "neighbor-v2"):
            raise UserError(f"--sampler {self.sampler} needs --implementation reference; the engine has neighbor.")

    def _check_milestones(self) -> None:
        """Refuse evaluations and snapshots that cannot be."""
        check_range("--evaluate-every", self.evaluate_every, 0)
        check_range("--evaluate-during", self.evaluate_during, 1, 10**7)
        check_range("--snapshots", self.snapshots, 0, 10_000)
        if self.stop_at_return is not None and not math.isfinite(self.stop_at_return):
            raise UserError(f"--stop-at-return is {self.stop_at_return}, but must be a finite number.")

    def check_evaluated(self, names: Collection[str] = ("evaluate_during", "stop_at_return")) -> None:
        """Refuse these settings of evaluations where there are none.

        Not part of `check`: a run that is resumed without evaluations keeps the settings that it had for them.
        """
        for name in ("evaluate_during", "stop_at_return"):
            if name in names and not self.evaluate_every and getattr(self, name) != getattr(RunConfig, name):
                raise UserError(f"`{name}` is for evaluations during training, but --evaluate-every is 0.")

    def why_torch(self) -> str | None:
        """Why only torch can learn in this run, as far as its settings tell; None if native code can."""
        reasons = {
            "the papers' baseline learns in torch": self.implementation == "reference",
            "quantization-aware training is in torch": self.qat_bits is not None,
            "schemes emulate torch's products": self.scheme is not None,
            f"--device is {self.device}, and native code runs on the CPU": self.device != "cpu",
            f"there is no native update for {self.algorithm}": self.algorithm not in ("maddpg", "masac"),
            "native code has no layer normalization": self.layer_norm,
        }
        return next((reason for reason, so in reasons.items() if so), None)

    def _check_actors(self) -> None:
        """Refuse settings of actors that cannot be."""
        check_range("--actors", self.actors, 0, 1024)
        for field in dataclasses.fields(ActorConfig):
            if not self.actors and getattr(self, field.name) != field.default:
                raise UserError(f"`{field.name}` is for runs with actors, but --actors is 0.")
        check_range("--pull-every", self.pull_every, 1, 2**40)
        if self.samples_per_insert is not None:
            check_range("--samples-per-insert", self.samples_per_insert, 1e-6, 1e6)
            every = self.update_every
            if every is not None and not math.isclose(self.batch / every, self.samples_per_insert, rel_tol=1e-9):
                raise UserError(
                    f"--samples-per-insert is {self.samples_per_insert:g}, but --batch {self.batch} per --update-every "
                    f"{every} makes {self.batch / every:g}; leave one of them out."
                )
            rounded = self.batch / self.samples_per_update
            if self.lockstep and not math.isclose(rounded, self.samples_per_insert, rel_tol=1e-9):
                raise UserError(
                    f"--samples-per-insert is {self.samples_per_insert:g}, but with --lockstep it must be --batch "
                    f"{self.batch} divided by a whole number, e.g. {rounded:g}."
                )
        if self.error_buffer is not None:
            check_range("--error-buffer", self.error_buffer, 0)
        if self.max_times_sampled is not None:
            check_range("--max-times-sampled", self.max_times_sampled, 1, 2**16 - 1)
            if self.sampler != "uniform":
                raise UserError(f"--max-times-sampled works with --sampler uniform, but --sampler is {self.sampler}.")
        if self.broadcast_bits is not None and self.broadcast_bits not in (32, 16, 8, 6, 4, 2):
            raise UserError(f"--broadcast-bits is {self.broadcast_bits}, but must be 32, 16, 8, 6, 4 or 2.")
        if self.actor_precision == "int8" and self.broadcast_bits not in (None, 8):
            raise UserError(
                f"--broadcast-bits is {self.broadcast_bits}, but int8 actors take the 8-bit codes that they play with."
            )
        if self.actor_bias_correction and self.actor_precision != "int8" and (self.broadcast_bits or 32) >= 16:
            raise UserError(
                "--actor-bias-correction is for int8 actors or --broadcast-bits of 8 and below: other weights are not "
                "rounded to codes."
            )
        if self.cluster is not None:
            self._check_cluster(self.cluster)
        able = {"torch": ("float32",), "numba": ("float32",), "native": ("int8",)}.get(self.actor_engine)
        if able is not None and self.actor_precision not in able:
            raise UserError(f"--actor-engine {self.actor_engine} computes in {able[0]}, not {self.actor_precision}.")
        if self.actors and self.implementation == "reference":
            raise UserError("--actors needs --implementation engine; the reference plays and learns in turn.")
        if self.actors and (self.env_workers or 1) > 1:
            raise UserError("--actors and --env-workers cannot be used together: actors are such processes already.")
        if self.actors and self.qat_bits is not None:
            raise UserError("--actors and --qat-bits cannot be used together: actors quantize by themselves.")

    def _check_cluster(self, cluster: str) -> None:
        """Refuse an address that cannot be one, and what a cluster does not have."""
        host, _, port = cluster.rpartition(":")
        named = host and not set(host) & set("/ \t\n") and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
        if cluster != "local" and not named:
            raise UserError(f"--cluster is '{printable(cluster)}', but must be local or HOST:PORT, e.g. 10.0.0.1:6379.")
        if self.lockstep:
            raise UserError("--lockstep and --cluster cannot be used together: actors of a cluster are never in step.")

    def _check_reference(self) -> None:
        """Refuse what only the engine has."""
        engine_only = {
            f"--algorithm {self.algorithm}": self.algorithm not in ("maddpg", "masac"),
            "--n-step": self.n_step > 1,
            "--target-period": self.target_period > 1,
            "--critic-hidden": self.critic_hidden is not None,
            "--layer-norm": self.layer_norm,
        }
        for name, asked in engine_only.items():
            if asked:
                raise UserError(f"{name} needs --implementation engine; the reference does not have it.")

    def _check_scheme(self) -> None:
        """Refuse schemes that are none, and what they cannot be combined with."""
        if self.scheme is None:
            for name in ("loss_scale", "scheme_networks"):
                if getattr(self, name) != getattr(PrecisionConfig, name):
                    raise UserError(f"`{name}` is for training in few bits, but --scheme is not given.")
            return
        from shoal.numerics.schemes.loss_scale import parse_loss_scale
        from shoal.numerics.schemes.scheme import parse_scheme

        scheme = parse_scheme(self.scheme)
        parse_loss_scale(self.loss_scale)
        if scheme.average_after is not None:
            raise UserError(
                f"--scheme {self.scheme} averages weights, which teams do not; add '; average_after=never' to it."
            )
        if self.scheme_networks == "critics" and self.algorithm == "dqn":
            raise UserError("--scheme-networks is critics, but dqn has only its Q networks; use actors or all.")
        if self.implementation == "reference":
            raise UserError("--scheme needs --implementation engine; the reference has full precision only.")
        if self.qat_bits is not None:
            raise UserError("--scheme and --qat-bits cannot be used together.")
        if self.device != "cpu":
            raise UserError(f"--scheme is emulated on the CPU, but --device is {self.device}.")

    @property
    def world_options(self) -> dict[str, Any]:
        """`env_options` as a dictionary."""
        if not self.env_options:
            return {}
        try:
            options = json.loads(self.env_options)
        except json.JSONDecodeError as error:
            raise UserError(f"--env-options is not JSON ({error}); use e.g. '{{\"N\": 4}}'.") from None
        if not isinstance(options, dict):
            raise UserError("--env-options must be a JSON object, e.g. '{\"N\": 4}'.")
        return options


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a team's run folder; `check_settings` compares it with the checkpoint's."""
    return read_settings(folder, TrainConfig)


def read_settings(folder: Path, kind: type[Stored]) -> Stored:
    """The configuration of a run folder, of this kind."""
    path = folder / CONFIG
    fields = read_fields(folder)
    fields.pop(disk.SEAL, None)
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := fields.keys() - known:
        raise UserError(
            f"'{path}' has the unknown setting '{min(unknown)}': it is damaged, or from another command or version of "
            f"Shoal{_also_in(folder)}."
        )
    try:
        return kind.stored(fields).checked()
    except UserError as error:
        raise UserError(f"'{path}' cannot be used: {str(error).rstrip('.')}{_also_in(folder)}.") from None


def read_fields(folder: Path) -> dict[str, Any]:
    """The contents of config.json, unchecked."""
    path = folder / CONFIG
    try:
        if folder.is_file():
            raise UserError(f"'{folder}' is a file, but must be a run folder.")
        if not folder.is_dir():
            raise UserError(f"There is no run folder '{folder}'.")
        if not path.exists():
            raise UserError(f"'{folder}' is not a run folder: it has no {CONFIG}{_also_in(folder)}.")
        fields = json.loads(disk.read(path))
    except disk.Damaged as error:
        raise UserError(f"'{path}' cannot be read: {error}{_also_in(folder)}.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{path}' cannot be read: {error}{_also_in(folder)}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"'{path}' does not hold a JSON object{_also_in(folder)}.")
    return fields


def _also_in(folder: Path) -> str:
    """Where else the settings of a run are, for repairing its config.json."""
    held = sorted(folder.glob("checkpoints/[0-9]*/meta.json"))
    return f"; the run's settings are also in '{held[-1]}'" if held else ""
