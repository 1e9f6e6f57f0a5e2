"""Hand-written controllers of the particle worlds, to compare trained teams with.

They know the whole state of the world, but have the actions of a policy: forces along both axes add up to one.
Shape letters: E copies, N agents, L landmarks.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import Array
from shoal.envs.particle import ACTIONS, ParticleWorld
from shoal.envs.physics import DAMPING, LEARNED, TIME_STEP

Floats = NDArray[np.float64]
Controller = Callable[[ParticleWorld], Array]
"""Actions (E, N, 5) of all agents for the present state of a world."""

MOST_AGENTS = 48  # assignment is slow for larger teams
APPROACH = 6.0  # speed per distance from the landmark; with 1 / TIME_STEP agents overshoot
AHEAD = 0.3  # seconds that anticipating chasers look ahead, about the best of 0.2 to 0.8


def controllers(world: ParticleWorld) -> dict[str, Controller]:
    """Those of a world, by name; none for large teams, or for learning prey, which would need a controller, too."""
    if world.spec.agents > MOST_AGENTS or (world.layout.pursuit and world.layout.prey_rule == LEARNED):
        return {}
    if not world.layout.pursuit:
        return {"greedy_assignment": greedy}
    return {"chasers": chase, "anticipating_chasers": partial(chase, ahead=AHEAD)}


def greedy(world: ParticleWorld) -> Array:
    """Cooperative navigation: every agent goes straight to a landmark of its own and stops there."""
    agents, step = world.spec.agents, TIME_STEP
    place, speed = world.position[:, :agents], world.velocity[:, :agents]
    landmarks = world.position[:, agents:]
    square = np.square(place[:, :, None] - landmarks[:, None]).sum(-1)  # (E, N, L)
    goal = assignment(square)[..., None]  # (E, N, 1)
    way = np.where(goal < 0, 0.0, np.take_along_axis(landmarks, goal, 1) - place)
    if not world.layout.openai:  # which moves by the old velocity first
        way -= step * speed
    return pushes(world, (APPROACH * way - (1 - DAMPING) * speed) / (step * world.layout.acceleration[:agents, None]))


def assignment(cost: Floats) -> NDArray[np.int64]:
    """(E, N): a landmark for each agent, with a small sum of the costs (E, N, L); -1: none is left.

    Greedy: the cheapest pair first; then two agents swap as long as that lowers the sum.
    """
    copies, agents, landmarks = cost.shape
    every, left, goal = np.arange(copies), cost.copy(), np.full((copies, agents), -1)
    for _ in range(min(agents, landmarks)):
        i, k = np.divmod(left.reshape(copies, -1).argmin(1), landmarks)
        goal[every, i] = k
        left[every, i] = left[every, :, k] = np.inf
    cost = np.concatenate([cost, np.zeros((copies, agents, 1))], 2)  # the last column, -1, is free
    while every.size:  # copies in which a swap may still help
        others = np.take_along_axis(cost[every], goal[every, None], 2)  # (E, N, N): to i, of the landmark that j has
        own = np.diagonal(others, axis1=1, axis2=2)
        saved = own[:, :, None] + own[:, None] - others - others.swapaxes(1, 2)
        best = saved.reshape(len(every), -1).argmax(1)
        helps = saved.reshape(len(every), -1).max(1) > 1e-9
        every, (i, j) = every[helps], np.divmod(best[helps], agents)
        goal[every, i], goal[every, j] = goal[every, j], goal[every, i]
    return goal


def chase(world: ParticleWorld, ahead: float = 0.0) -> Array:
    """Predator-prey: every predator pushes towards its nearest prey, to where both would be `ahead` seconds later."""
    hunters, bodies = world.layout.predators, world.layout.bodies
    place, speed = world.position[:, :bodies], world.velocity[:, :bodies]
    way = place[:, None, hunters:] - place[:, :hunters, None]  # (E, predators, prey, 2)
    nearest = np.square(way).sum(-1).argmin(2)[:, :, None, None]
    way += ahead * (speed[:, None, hunters:] - speed[:, :hunters, None])
    way = np.take_along_axis(way, nearest, 2)[:, :, 0]
    return pushes(world, way / np.maximum(np.abs(way).sum(-1, keepdims=True), 1e-9))


def pushes(world: ParticleWorld, push: Floats) -> Array:
    """(E, N, 5): the actions for forces (E, N, 2), as shares of the agents' strength; stronger ones are scaled down."""
    push = push / np.maximum(1.0, np.abs(push).sum(-1, keepdims=True))
    positive, negative = np.maximum(push, 0), np.maximum(-push, 0)
    actions = np.empty((*push.shape[:2], ACTIONS), np.float32)
    actions[..., 0] = 1 - np.abs(push).sum(-1)
    actions[..., 1::2], actions[..., 2::2] = (positive, negative) if world.layout.openai else (negative, positive)
    return actions
