"""MADDPG (Lowe et al. 2017) on one page, to read and copy: one actor and one centralised critic per agent.

    python examples/maddpg_single_file.py --episodes 2000

Plain PyTorch, Shoal's worlds and replay ring. `shoal train` is faster, and also has box actions and agents that leave.
Shape letters: E copies, N agents, B batch, O observation, A action.
"""

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import nn

from shoal import make_env
from shoal.replay import Ring, Uniform


@dataclass
class Settings:
    """Settings of the training; each is an option of the command line, with its comment as the help text."""

    env: str = "cooperative-navigation"  # A particle world: cooperative-navigation or predator-prey.
    episodes: int = 2_000  # Episodes to train for, over all copies.
    copies: int = 25  # Copies of the world that are stepped together, E.
    learning_rate: float = 0.003  # Learning rate of Adam, for actors and critics.
    discount: float = 0.95  # Discount factor (gamma).
    tau: float = 0.01  # Soft-update coefficient of the target networks.
    batch: int = 256  # Transitions per mini-batch, B.
    warmup: int = 100  # Steps of all copies before the first update; then every step is followed by one.
    seed: int = 0  # Random seed.


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Agent:
    """The actor sees its own observation; the critic, needed only in training, sees all observations and actions."""

    def __init__(self, spec, learning_rate: float):
        self.actor = network(spec.observation_size, spec.action_size)
        self.critic = network(spec.agents * (spec.observation_size + spec.action_size), 1)
        self.target_actor, self.target_critic = deepcopy(self.actor), deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), learning_rate)


def gradient_step(optimizer, model: nn.Module, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def update(agents: list[Agent], batch, spec, settings: Settings) -> None:
    """One gradient step of every agent's critic and actor, and a soft update of its targets."""
    joint, next_joint = torch.from_numpy(batch.joint[0]), torch.from_numpy(batch.next_joint[0])  # (B, N·O + N·A)
    reward, terminated = torch.from_numpy(batch.reward[0]), torch.from_numpy(batch.terminated[0])  # (B, N)
    seen = spec.agents * spec.observation_size  # a joint row is all observations, then all actions
    observations, next_observations = (rows[:, :seen].chunk(spec.agents, 1) for rows in (joint, next_joint))
    actions = joint[:, seen:].chunk(spec.agents, 1)  # N × (B, A)
    with torch.no_grad():  # bootstrap at time limits, not at true ends
        next_actions = [F.gumbel_softmax(a.target_actor(o)) for a, o in zip(agents, next_observations, strict=True)]
        next_joint = torch.cat([*next_observations, *next_actions], 1)
        next_q = torch.cat([agent.target_critic(next_joint) for agent in agents], 1)  # (B, N)
        target_q = reward + settings.discount * ~terminated * next_q
    for i, agent in enumerate(agents):
        gradient_step(agent.critic_optimizer, agent.critic, F.mse_loss(agent.critic(joint)[:, 0], target_q[:, i]))
        logits = agent.actor(observations[i])
        mixed = [*actions[:i], F.gumbel_softmax(logits), *actions[i + 1 :]]  # the other agents' actions as played
        p_loss = -agent.critic(torch.cat([*observations, *mixed], 1)).mean() + 1e-3 * logits.square().mean()
        gradient_step(agent.actor_optimizer, agent.actor, p_loss)
        for target, online in ((agent.target_actor, agent.actor), (agent.target_critic, agent.critic)):
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.data.lerp_(new.data, settings.tau)


@torch.no_grad()
def act(agents: list[Agent], observation: np.ndarray, explore: bool) -> np.ndarray:
    """(E, N, A): soft Gumbel samples in training, the most likely choices otherwise."""
    logits = torch.stack([agent.actor(torch.from_numpy(observation[:, i])) for i, agent in enumerate(agents)], 1)
    return (F.gumbel_softmax(logits) if explore else F.one_hot(logits.argmax(-1), logits.shape[-1]).float()).numpy()


def evaluate(settings: Settings, agents: list[Agent] | None, episodes: int = 200) -> float:
    """Mean return per agent of whole episodes, all played at once; without agents: of random actions."""
    env = make_env(settings.env, copies=episodes, rules="openai", seed=settings.seed + 1, stagger=False)
    observation, total = env.reset(), 0.0
    for _ in range(env.spec.episode_length):
        step = env.step(env.sample_actions() if agents is None else act(agents, observation, explore=False))
        observation, total = step.observation, total + float(step.reward.mean())
    return total


def main(settings: Settings) -> tuple[float, float]:
    """Train; the returns of the trained and of a random team."""
    torch.set_num_threads(1)  # networks this small gain nothing from more
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    env = make_env(settings.env, copies=settings.copies, rules="openai", seed=settings.seed)
    agents = [Agent(env.spec, settings.learning_rate) for _ in range(env.spec.agents)]
    ring = Ring(env.spec, settings.copies, capacity=100_000)
    ring.begin(observation := env.reset())  # (E, N, O)
    for t in range(1, settings.episodes * env.spec.episode_length // settings.copies + 1):
        step = env.step(actions := act(agents, observation, explore=True))
        ring.add(actions, step)
        observation = step.observation  # a copy whose episode ended has been reset already
        if t > settings.warmup:
            update(agents, ring.sample(Uniform(), settings.batch, rng), env.spec, settings)
        if t % 500 == 0:
            print(f"{t * settings.copies:,} transitions: return {evaluate(settings, agents):.1f} per agent")
    return evaluate(settings, agents), evaluate(settings, None)


if __name__ == "__main__":
    print("return per agent: trained {:.1f}, random {:.1f}".format(*main(tyro.cli(Settings))))
