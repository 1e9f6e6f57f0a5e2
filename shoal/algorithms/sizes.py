"""How many numbers a team's networks have, and whether there is memory for them."""

from itertools import pairwise

from shoal.algorithms.config import LearnConfig
from shoal.envs.base import EnvSpec
from shoal.system.memory import check_fits


def check_team_fits(spec: EnvSpec, config: LearnConfig) -> None:
    """Refuse a team that there is no memory for."""
    check_fits(
        f"A team of {spec.agents} agents with hidden layers of {_shown(config.hidden)} units",
        team_bytes(spec, config),
        lambda usable: "fewer agents or smaller hidden layers need less",
    )


def team_bytes(spec: EnvSpec, config: LearnConfig) -> int:
    """What a team takes to be built: networks, targets, Adam's two moments, and layers before they are stacked."""
    return 4 * 5 * sum(network_weights(spec, config))


def network_weights(spec: EnvSpec, config: LearnConfig) -> tuple[int, int]:
    """Numbers in the actors and in the critics of all agents, targets not counted."""
    joint = spec.agents * (spec.observation_size + spec.action_size)
    actor = _weights((spec.observation_size, *config.hidden, 2 * spec.action_size))
    critic = _weights((joint, *config.critic_layers, config.atoms or 1))
    return spec.agents * actor, spec.agents * heads(config) * critic


def heads(config: LearnConfig) -> int:
    """Critics per agent."""
    return {"masac": 2, "dqn": 0}.get(config.algorithm, 1)


def _weights(layers: tuple[int, ...]) -> int:
    """Numbers in a network with these layers, inputs and outputs included."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(layers))


def _shown(hidden: tuple[int, ...]) -> str:
    """The widths, the first few of many."""
    return " × ".join(f"{width:,}" for width in hidden[:4]) + (" × …" if len(hidden) > 4 else "")
