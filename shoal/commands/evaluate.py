"""`shoal evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from shoal.commands.arguments import parse
from shoal.commands.console import progress_bar
from shoal.commands.returns import print_returns, print_symptom, run_symptom
from shoal.errors import check_range
from shoal.system.streams import print_json, say


def evaluate(argv: list[str]) -> int:
    """Returns of a policy, of a random team and of hand-written controllers, with 95 % confidence intervals.

    Also landmarks covered and prey caught, and a sentence if the run's log shows a problem.

    shoal evaluate runs/hunt
    shoal evaluate runs/hunt --episodes 1000 --json
    shoal evaluate runs/hunt --checkpoint best
    shoal evaluate policy.onnx --threads 2
    shoal evaluate ppo.zip --env CartPole-v1
    shoal evaluate sac.zip --env Pendulum-v1 --normaliser vecnormalize.npz
    """
    import tyro

    from shoal.commands.policy_arguments import PolicyArguments

    @dataclass(frozen=True)
    class EvaluateCommand(PolicyArguments):
        policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY")]
        """Run folder, Stable-Baselines3 zip (A2C, PPO, DQN, DDPG, TD3, SAC), or a file of `shoal export` (needs no
        torch)."""
        agents: int | None = None
        """Number of agents, where the world allows a choice; None: as in training."""
        episode_length: int | None = None
        """Steps per episode; None: as in training, or the environment's own limit."""
        env_options: str = ""
        """PettingZoo, Gymnasium and dm_control: constructor arguments as a JSON object."""
        env_workers: int | None = None
        """PettingZoo, Gymnasium and dm_control: processes that share the copies of a slow environment; None or 1: this
        process alone. Results do not depend on it."""
        episodes: int = 200
        """Episodes per team."""
        seed: int = 1
        """Random seed of initial states and noise."""
        threads: int | None = None
        """Threads of ONNX Runtime, for a file of `shoal export`; None: one."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(EvaluateCommand, evaluate, argv)
    check_range("seed", command.seed, 0, 2**62)
    check_range("episodes", command.episodes, 1, 10**7)
    with progress_bar("shoal evaluate") as advance:
        from shoal.policies import load
        from shoal.training.evaluation import PLAYERS
        from shoal.training.result import beside_controllers, by_player, flat, flat_controllers
        from shoal.training.saved_team import updates_made

        policy = load(
            command.policy, command.env, agents=command.agents, episode_length=command.episode_length,
            env_options=command.env_options, env_workers=command.env_workers, normaliser=command.normaliser,
            threads=command.threads, checkpoint=command.checkpoint, trust=command.trust, warn=say,
        )  # fmt: skip
        updates = updates_made(Path(command.policy), command.checkpoint) if policy.kind == "run" else None
        played = {}
        advance.expect((len(policy.modes) + 1) * command.episodes)
        for deterministic in policy.modes:
            way = "deterministic" if deterministic or len(policy.modes) == 1 else "noisy"
            played[way] = policy.evaluate(command.episodes, command.seed, deterministic, advance)
        played["random"] = policy.evaluate_random(command.episodes, command.seed, advance)
        played |= policy.evaluate_controllers(command.episodes, command.seed)
    controllers = beside_controllers(played)
    wrong = run_symptom(Path(command.policy)) if policy.kind == "run" else None
    if command.json:
        of_run = {"run": command.policy, "checkpoint": command.checkpoint, "updates": updates, "symptom": wrong}
        best = played["deterministic"]
        values: dict[str, Any] = {
            **(of_run if policy.kind == "run" else {}),
            "policy": command.policy,
            "precision": policy.precision,
            "env": policy.env,
            "episodes": best.episodes,
            "return_mean": best.mean,
            "return_ci95": best.ci95,
            "return_prey": best.prey_mean,
        }
        for way, result in played.items():
            if way in PLAYERS[1:]:
                values |= {f"return_{way}": result.mean, f"return_{way}_ci95": result.ci95}
        print_json(values | flat(by_player(played), "deterministic") | flat_controllers(controllers))
        return 0
    returns = {name: (result.mean, result.ci95) for name, result in played.items()}
    exported = f"exported, {policy.precision}" if policy.kind == "onnx" else None
    print_returns(returns, command.episodes, policy.env, exported, by_player(played), updates != 0, controllers)
    print_symptom(wrong)
    return 0
