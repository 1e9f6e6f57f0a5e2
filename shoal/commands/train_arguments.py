"""The options of `shoal train`, in the groups of its --help."""

import dataclasses
from dataclasses import dataclass, field

from shoal.algorithms.config import OWN_SETTINGS, AlgorithmConfig, NetworkConfig, ReplayConfig
from shoal.commands.arguments import option
from shoal.errors import SETTING_ALIASES
from shoal.training.config import ActorConfig, PrecisionConfig, RunConfig, TrainConfig, WorldConfig

ALIASES = {option(alias): option(name) for alias, name in SETTING_ALIASES.items()}  # other names of options


def own_values() -> dict[str, str]:
    """What None means for settings that differ by algorithm: "0.01 (maddpg, masac), 0.0001 (d4pg, dqn)"."""
    algorithms_of: dict[str, dict[str, list[str]]] = {}
    for algorithm, settings in OWN_SETTINGS.items():
        for name, value in settings.items():
            text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            algorithms_of.setdefault(name, {}).setdefault(text, []).append(algorithm)
    return {"entities": "index"} | {
        name: ", ".join(f"{value} ({', '.join(algorithms)})" for value, algorithms in values.items())
        for name, values in algorithms_of.items()
    }


@dataclass(frozen=True)
class RunArguments(RunConfig):
    """Length of the run, hardware, output, and what else the command does."""

    resume: bool = False
    """Continue the run in --out (short: --resume FOLDER) from its newest complete checkpoint."""
    trust: bool = False
    """With --resume: allow third-party code that the run names as its environment (gym:MODULE:NAME,
    pettingzoo:MODULE); one named with --env is trusted, and that of a run that you trained on this machine."""
    seeds: tuple[str, ...] | None = None
    """Several seeds side by side, e.g. 0-9 or 0,3,7: one run folder each inside --out, one table and one picture. The
    same command again continues. See also `shoal sweep`."""
    parallel: int | None = None
    """With --seeds: runs side by side; None: as many as there are processors, fewer where memory is short."""
    watch: bool = False
    """Draw an episode of the trained team at the end, as `shoal watch` does."""
    quiet: bool = False
    """Show neither progress nor the tables at the end; --json still prints its object."""
    json: bool = False
    """Print one JSON object on standard output and nothing else there."""


@dataclass(frozen=True)
class TrainArguments:
    """All options of `shoal train`; fields are groups."""

    world: WorldConfig = field(default_factory=WorldConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    run: RunArguments = field(default_factory=RunArguments)

    def config(self) -> TrainConfig:
        given = {name: value for group in vars(self).values() for name, value in vars(group).items()}
        return TrainConfig(**{setting.name: given[setting.name] for setting in dataclasses.fields(TrainConfig)})
