"""Trains BenchMARL on simple_spread and prints its learning curve as JSON; run by BenchMARL's own interpreter.

    PYTHON -I benchmarl_run.py '{"algorithm": "maddpg", "agents": 3, "marks": [30, 60], …}'

Nothing of Shoal is imported: the environment of `papers/benchmarl.txt` is enough. Policies are evaluated without
exploration, at the marks in CPU seconds, in PettingZoo's own world; the time of evaluations does not count.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarl.algorithms import MaddpgConfig, MappoConfig, MasacConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from pettingzoo.mpe import simple_spread_v3
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

ALGORITHMS = {"maddpg": MaddpgConfig, "masac": MasacConfig, "mappo": MappoConfig}
LENGTH = 25


class Enough(Exception):
    """The CPU time is spent."""


class Curve(Callback):
    """Evaluates the team between iterations, and ends the run when its CPU time is spent."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.marks = list(settings["marks"])
        self.rows: list[dict[str, float]] = []
        self.updates = 0
        self.parent = os.getppid()
        self.start()

    def start(self) -> None:
        """Count CPU and wall seconds from here on."""
        self.started, self.paused = clocks(), np.zeros(2)

    def on_train_step(self, batch: Any, group: str) -> None:
        self.updates += 1

    def on_train_end(self, training_td: Any, group: str) -> None:
        begun = clocks()
        cpu, wall = begun - self.started - self.paused
        if os.getppid() != self.parent:  # which was killed
            raise Enough
        if cpu < self.marks[0]:
            return
        self.marks = [mark for mark in self.marks if mark > cpu]
        episodes = self.settings["evaluate" if self.marks else "evaluate_at_end"]
        spent = {"env_steps": self.experiment.total_frames, "updates": self.updates, "cpu": cpu, "wall": wall}
        self.rows.append(spent | evaluate(self.experiment, self.settings, episodes))
        self.paused += clocks() - begun
        if not self.marks:
            raise Enough


def clocks() -> Any:
    """CPU seconds of this process, and wall seconds."""
    return np.array([time.process_time(), time.perf_counter()])


def evaluate(experiment: Any, settings: dict[str, Any], episodes: int) -> dict[str, float]:
    """Mean return per agent of the policy without exploration, its 95 % interval, and the landmarks covered."""
    returns, reached = play(settings, episodes, lambda observations: act(experiment, observations))
    ci95 = 1.96 * returns.std(ddof=1) / np.sqrt(episodes)
    return {"return": float(returns.mean()), "ci95": float(ci95), "covered": float(reached.mean())}


def act(experiment: Any, observations: Any) -> Any:
    """Actions (E, N, A) for observations (E, N, O)."""
    seen = TensorDict(
        {"agent": TensorDict({"observation": torch.from_numpy(observations)}, observations.shape[:2])},
        observations.shape[:1],
    )
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return experiment.policy(seen)["agent", "action"].numpy()


def play(settings: dict[str, Any], episodes: int, act: Any) -> Any:
    """Returns per agent, and landmarks covered at the end, of episodes that are played side by side."""
    worlds = [
        simple_spread_v3.parallel_env(N=settings["agents"], max_cycles=LENGTH, continuous_actions=True)
        for _ in range(episodes)
    ]
    seen = [world.reset(seed=10_000 + k)[0] for k, world in enumerate(worlds)]
    names = worlds[0].possible_agents
    total = np.zeros(episodes)
    for _ in range(LENGTH):
        chosen = act(np.array([[own[name] for name in names] for own in seen], np.float32))
        for k, world in enumerate(worlds):
            seen[k], rewards, *_ = world.step(dict(zip(names, chosen[k], strict=True)))
            total[k] += sum(rewards.values()) / len(names)
    return total, np.array([covered(world.unwrapped.world) for world in worlds])


def covered(world: Any) -> int:
    """Landmarks with an agent's centre within 0.1."""
    agents, landmarks = (np.array([one.state.p_pos for one in all_of]) for all_of in (world.agents, world.landmarks))
    return int((np.linalg.norm(landmarks[:, None] - agents, axis=2).min(1) < 0.1).sum())


def random_return(settings: dict[str, Any], episodes: int) -> float:
    """Mean return per agent of uniformly random actions."""
    rng = np.random.default_rng(settings["seed"])
    return float(play(settings, episodes, lambda seen: rng.random((*seen.shape[:2], 5), np.float32))[0].mean())


def train(settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """Train until the CPU time is spent."""
    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    quiet = {"loggers": [], "create_json": False, "evaluation": False, "render": False, "save_folder": folder}
    for name, value in {**quiet, **settings["experiment"]}.items():
        getattr(config, name)  # refuses a name that it does not have
        setattr(config, name, value)
    model, critic = MlpConfig.get_from_yaml(), MlpConfig.get_from_yaml()
    for layers in (model, critic):
        layers.num_cells = settings["hidden"]
        layers.activation_class = getattr(torch.nn, settings["activation"])
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config |= {"N": settings["agents"], "max_cycles": LENGTH}
    curve = Curve(settings)
    experiment = Experiment(
        task=task,
        algorithm_config=ALGORITHMS[settings["algorithm"]].get_from_yaml(),
        model_config=model,
        critic_model_config=critic,
        seed=settings["seed"],
        config=config,
        callbacks=[curve],
    )
    curve.start()
    with contextlib.suppress(Enough):
        experiment.run()
    return {"curve": curve.rows, "random": random_return(settings, settings["evaluate_at_end"])}


def main() -> None:
    """Train as the argument says; everything that libraries print goes to standard error."""
    settings = json.loads(sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        result = train(settings, str(Path(folder)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
