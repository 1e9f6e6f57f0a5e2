"""One step of a particle world, compiled: forces, motion, rewards, observations, new episodes.

Shape letters: E copies, N agents, O observation, K entities, F metrics. Entities are ordered: agents, then prey that
the world itself moves, then landmarks or obstacles. "Bodies" are those that move.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.compiled import njit
from shoal.envs.base import Array, Bools
from shoal.envs.nearest import Floats, Sorting, inlined, nearest_first, sorting

TIME_STEP = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
NEGLIGIBLE = 40.0  # margins: exp(-40) is below the resolution of float64

TOUCH_REWARD = 10.0
LOCAL_RATIO = 0.5  # share of an agent's own collisions in its reward, mpe2 rules
COVERED = 0.1  # an agent whose centre is nearer than this covers a landmark, as in OpenAI's benchmark data

LEARNED, SCRIPTED, FACMAC, RANDOM = 0, 1, 2, 3
PREY_LOOK = 0.3  # how far ahead the scripted prey looks
PREY_DIRECTIONS = np.array([(0.0, 0.0)] + [(np.cos(t), np.sin(t)) for t in np.arange(16) * (np.pi / 8)])
FACMAC_CANDIDATES = 100


class Layout(NamedTuple):
    """The entities of a world and how they move: everything that the kernels need besides the state."""

    agents: int  # N, the bodies that actions move
    bodies: int  # agents and the prey that the world moves
    colliders: int  # entities that push each other; the rest are only seen
    predators: int  # bodies after these are prey; equal to `bodies` in a world without prey
    pursuit: bool  # rewards of predator-prey, else of cooperative navigation
    openai: bool  # rule set openai, else mpe2
    by_distance: bool  # entities of a kind are seen nearest first, else in their order
    prey_rule: int
    prey_scale: float
    size: Floats  # (K,)
    acceleration: Floats  # (bodies,)
    max_speed: Floats  # (bodies,)
    seen: NDArray[np.uint32]  # (N, K - 1) whom each agent sees, in the order of its observation
    start: Floats  # (K,) an episode starts at a random place in [-start, start]²


# ---------------------------------------------------------------------------------------------- draws, distances


@inlined
def draw(random: NDArray[np.uint64], e: int) -> float:
    """The next number of copy e's stream, uniform in [0, 1).

    Each copy has its own splitmix64 stream, so its future does not depend on how copies are shared out to threads.
    """
    random[e] += np.uint64(0x9E3779B97F4A7C15)
    z = random[e]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * 2.0**-53


@inlined
def scatter(layout: Layout, e: int, position: Floats, velocity: Floats, random: NDArray[np.uint64]) -> None:
    """Start an episode in copy e: everything at a random place and at rest."""
    for k in range(len(layout.size)):
        for axis in range(2):
            position[e, k, axis] = layout.start[k] * (2.0 * draw(random, e) - 1.0)
            velocity[e, k, axis] = 0.0


@inlined
def nearest(position: Floats, e: int, count: int, x: float, y: float) -> float:
    """Squared distance from a place to the nearest of the first `count` entities of copy e."""
    least = np.inf
    for k in range(count):
        dx, dy = x - position[e, k, 0], y - position[e, k, 1]
        least = min(least, dx * dx + dy * dy)
    return least


@inlined
def touching(position: Floats, e: int, count: int, k: int, reach: float) -> int:
    """How many of the first `count` entities of copy e are nearer to entity k than `reach`."""
    touches = 0
    for i in range(count):
        dx, dy = position[e, k, 0] - position[e, i, 0], position[e, k, 1] - position[e, i, 1]
        touches += dx * dx + dy * dy < reach * reach
    return touches


# ---------------------------------------------------------------------------------------------- forces


@njit(cache=True)
def control(layout: Layout, actions: NDArray[np.floating], force: Floats) -> int:
    """Turn actions (E, N, 5) into forces (E, bodies, 2).

    Returns -1, or e * N + i of the first agent whose action is not finite; then nothing was written.
    The two rule sets count the four directions differently, and only mpe2 clips the entries to [0, 1].
    """
    copies, agents, size = actions.shape
    finite, flat = True, actions.reshape(-1)
    for value in flat:
        finite &= value - value == 0
    if not finite:
        for k in range(flat.size):
            if flat[k] - flat[k] != 0:
                return k // size
    zero, one = actions.dtype.type(0), actions.dtype.type(1)
    for e in range(copies):
        for i in range(agents):
            for axis in range(2):
                first, second = actions[e, i, 1 + 2 * axis], actions[e, i, 2 + 2 * axis]
                if layout.openai:
                    push = first - second
                else:
                    push = min(max(second, zero), one) - min(max(first, zero), one)
                force[e, i, axis] = push * layout.acceleration[i]
    return -1


@inlined
def penetration(gap: float) -> float:
    """How deep two bodies press into each other, smoothed: margin * log(1 + exp(-gap / margin))."""
    depth = -gap / CONTACT_MARGIN
    if depth > NEGLIGIBLE:
        return depth * CONTACT_MARGIN
    if depth > 0.0:
        return (depth + np.log1p(np.exp(-depth))) * CONTACT_MARGIN
    return np.log1p(np.exp(depth)) * CONTACT_MARGIN


@inlined
def add_contacts(layout: Layout, e: int, position: Floats, force: Floats) -> None:
    """Add to copy e's forces the push of every two colliders that are near each other.

    Bodies with the same centre have no direction to part in: the first is pushed along +x, the other along -x.
    """
    for a in range(layout.bodies):
        x, y = position[e, a, 0], position[e, a, 1]
        for b in range(a + 1, layout.colliders):
            dx, dy = x - position[e, b, 0], y - position[e, b, 1]
            square = dx * dx + dy * dy
            touch = layout.size[a] + layout.size[b]
            reach = touch + NEGLIGIBLE * CONTACT_MARGIN
            if square > reach * reach:
                continue
            distance = np.sqrt(square)
            depth = penetration(distance - touch)
            if distance == 0.0:
                dx = distance = 1.0
            push_x = CONTACT_FORCE * dx / distance * depth
            push_y = CONTACT_FORCE * dy / distance * depth
            force[e, a, 0] += push_x
            force[e, a, 1] += push_y
            if b < layout.bodies:
                force[e, b, 0] -= push_x
                force[e, b, 1] -= push_y


@inlined
def integrate(layout: Layout, e: int, position: Floats, velocity: Floats, force: Floats) -> None:
    """Move copy e's bodies by one time step: mpe2 with the old velocity, openai with the new one."""
    for i in range(layout.bodies):
        old_x, old_y = velocity[e, i, 0], velocity[e, i, 1]
        new_x = old_x * (1 - DAMPING) + force[e, i, 0] * TIME_STEP
        new_y = old_y * (1 - DAMPING) + force[e, i, 1] * TIME_STEP
        speed = np.sqrt(new_x * new_x + new_y * new_y)
        if speed > layout.max_speed[i]:
            new_x = new_x / speed * layout.max_speed[i]
            new_y = new_y / speed * layout.max_speed[i]
        velocity[e, i, 0], velocity[e, i, 1] = new_x, new_y
        position[e, i, 0] += TIME_STEP * (new_x if layout.openai else old_x)
        position[e, i, 1] += TIME_STEP * (new_y if layout.openai else old_y)


# ---------------------------------------------------------------------------------------------- prey


@inlined
def border(s: float) -> float:
    """What a prey pays for a coordinate of absolute value s: nothing inside, more and more outside."""
    if s < 0.9:
        return 0.0
    if s < 1.0:
        return (s - 0.9) * 10.0
    return min(np.exp(2.0 * s - 2.0), 10.0)


@inlined
def scripted_prey(layout: Layout, e: int, k: int, position: Floats) -> int:
    """Index in PREY_DIRECTIONS that leads prey k to the best place: far from predators, inside the border."""
    best, best_score = 0, -np.inf
    for c in range(len(PREY_DIRECTIONS)):
        x = position[e, k, 0] + PREY_LOOK * PREY_DIRECTIONS[c, 0]
        y = position[e, k, 1] + PREY_LOOK * PREY_DIRECTIONS[c, 1]
        score = np.sqrt(nearest(position, e, layout.predators, x, y)) - border(abs(x)) - border(abs(y))
        if score > best_score:
            best, best_score = c, score
    return best


@inlined
def facmac_prey(layout: Layout, e: int, k: int, position: Floats, random: NDArray[np.uint64]) -> tuple[float, float]:
    """FACMAC's rule: of 100 random offsets in the unit disc, the one that ends farthest from the nearest predator.

    Offsets that end inside a predator do not count; if none is left the prey does not push.
    """
    x, y = position[e, k, 0], position[e, k, 1]
    hunter, closest = 0, np.inf
    for p in range(layout.predators):
        square = (x - position[e, p, 0]) ** 2 + (y - position[e, p, 1]) ** 2
        if square < closest:
            hunter, closest = p, square
    best_x = best_y = 0.0
    best = -1.0
    for _ in range(FACMAC_CANDIDATES):
        radius, angle = np.sqrt(draw(random, e)), 2.0 * np.pi * draw(random, e)
        offset_x, offset_y = radius * np.cos(angle), radius * np.sin(angle)
        free = True
        for p in range(layout.predators):
            dx, dy = x + offset_x - position[e, p, 0], y + offset_y - position[e, p, 1]
            free &= dx * dx + dy * dy >= (layout.size[p] + layout.size[k]) ** 2
        dx, dy = x + offset_x - position[e, hunter, 0], y + offset_y - position[e, hunter, 1]
        score = dx * dx + dy * dy
        if free and score > best:
            best, best_x, best_y = score, offset_x, offset_y
    return best_x, best_y


@inlined
def move_prey(layout: Layout, e: int, position: Floats, random: NDArray[np.uint64], force: Floats) -> None:
    """Set the forces of the prey that the world itself moves."""
    for k in range(layout.agents, layout.bodies):
        if layout.prey_rule == SCRIPTED:
            best = scripted_prey(layout, e, k, position)
            force[e, k, 0] = layout.acceleration[k] * PREY_DIRECTIONS[best, 0]
            force[e, k, 1] = layout.acceleration[k] * PREY_DIRECTIONS[best, 1]
        elif layout.prey_rule == FACMAC:
            x, y = facmac_prey(layout, e, k, position, random)
            force[e, k, 0], force[e, k, 1] = layout.prey_scale * x, layout.prey_scale * y
        else:
            force[e, k, 0] = layout.acceleration[k] * (2.0 * draw(random, e) - 1.0)
            force[e, k, 1] = layout.acceleration[k] * (2.0 * draw(random, e) - 1.0)


# ---------------------------------------------------------------------------------------------- rewards, metrics


@inlined
def navigation_reward(layout: Layout, e: int, position: Floats, reward: Array) -> None:
    """Every landmark wants an agent near it, and agents should not touch.

    mpe2: half of the distances and half of one's own touches. openai: an agent touches itself, too, and all
    agents share the sum of their rewards.
    """
    agents = layout.agents
    distance = 0.0  # from each landmark to its nearest agent, summed
    for k in range(agents, len(layout.size)):
        distance += np.sqrt(nearest(position, e, agents, position[e, k, 0], position[e, k, 1]))
    shared = 0.0
    for i in range(agents):
        touches = touching(position, e, agents, i, layout.size[0] + layout.size[0])  # itself among them
        shared -= distance + touches
        reward[e, i] = -(1 - LOCAL_RATIO) * distance - LOCAL_RATIO * (touches - 1)
    if layout.openai:
        reward[e, :] = shared


@inlined
def pursuit_reward(layout: Layout, e: int, position: Floats, reward: Array, caught: Bools) -> None:
    """Predators share +10 for every predator that touches a prey; a prey pays for it and for leaving the arena.

    Marks in `caught` (E, prey) the prey that are touched.
    """
    total = 0.0
    for k in range(layout.predators, layout.bodies):
        x, y = position[e, k, 0], position[e, k, 1]
        touches = touching(position, e, layout.predators, k, layout.size[0] + layout.size[k])
        total += TOUCH_REWARD * touches
        caught[e, k - layout.predators] |= touches > 0
        if layout.prey_rule == LEARNED:
            reward[e, k] = -TOUCH_REWARD * touches - border(abs(x)) - border(abs(y))
    reward[e, : layout.predators] = total


@inlined
def metric(layout: Layout, e: int, position: Floats, caught: Bools) -> int:
    """At the end of an episode: prey touched in it, or landmarks with an agent's centre nearer than `COVERED`."""
    count = 0
    if layout.pursuit:
        for k in range(caught.shape[1]):
            count += caught[e, k]
            caught[e, k] = False  # in the next episode
    else:
        for k in range(layout.agents, len(layout.size)):
            square = nearest(position, e, layout.agents, position[e, k, 0], position[e, k, 1])
            count += square < COVERED * COVERED
    return count


# ---------------------------------------------------------------------------------------------- observations


@inlined
def observe(layout: Layout, e: int, position: Floats, velocity: Floats, observation: Array, work: Sorting) -> None:
    """Write what each agent of copy e sees.

    Own velocity and position; landmarks, then other bodies, relative to itself; velocities of the other prey.
    The rest is zeros: messages that nobody sends in cooperative navigation, padding of the prey's view.
    """
    agents, seen = work.order.shape
    if layout.by_distance:
        nearest_first(e, position, agents, layout.predators, layout.bodies, work)
    for i in range(agents):
        x, y = position[e, i, 0], position[e, i, 1]
        observation[e, i, 0], observation[e, i, 1] = velocity[e, i, 0], velocity[e, i, 1]
        observation[e, i, 2], observation[e, i, 3] = x, y
        for s in range(seen):
            k = work.order[i, s]
            observation[e, i, 4 + 2 * s] = position[e, k, 0] - x
            observation[e, i, 5 + 2 * s] = position[e, k, 1] - y
        end = 4 + 2 * seen
        prey = layout.bodies - layout.predators - (i >= layout.predators)  # the last that are seen
        for s in range(seen - prey, seen):
            k = work.order[i, s]
            observation[e, i, end], observation[e, i, end + 1] = velocity[e, k, 0], velocity[e, k, 1]
            end += 2
        for o in range(end, observation.shape[2]):
            observation[e, i, o] = 0.0


# ---------------------------------------------------------------------------------------------- all copies


@njit(cache=True, nogil=True)
def play(
    first: int,
    last: int,
    layout: Layout,
    force: Floats,
    position: Floats,
    velocity: Floats,
    random: NDArray[np.uint64],
    caught: Bools,
    final_position: Floats,
    ended: Bools,
    observation: Array,
    reward: Array,
    final_observation: Array,
    keep_final: bool,
    metrics: Array,
) -> None:
    """One step of the copies first..last, and a new episode for those that `ended` marks.

    `force` holds the agents' own forces and is used up. `final_observation` is written if `keep_final`,
    `metrics` (E, 1) for the copies that end, `final_position` (K, 2) if copy 0 does.
    """
    work = sorting(layout.seen, layout.by_distance)
    for e in range(first, last):
        move_prey(layout, e, position, random, force)
        add_contacts(layout, e, position, force)
        integrate(layout, e, position, velocity, force)
        if layout.pursuit:
            pursuit_reward(layout, e, position, reward, caught)
        else:
            navigation_reward(layout, e, position, reward)
        observe(layout, e, position, velocity, observation, work)
        if keep_final:
            for i in range(observation.shape[1]):
                for o in range(observation.shape[2]):  # whole rows would compile numba's texts of shapes for seconds
                    final_observation[e, i, o] = observation[e, i, o]
        if ended[e]:
            metrics[e, 0] = metric(layout, e, position, caught)
            for k in range(len(final_position) if e == 0 else 0):
                final_position[k, 0], final_position[k, 1] = position[e, k, 0], position[e, k, 1]
            scatter(layout, e, position, velocity, random)
            observe(layout, e, position, velocity, observation, work)


@njit(cache=True)
def start(layout: Layout, position: Floats, velocity: Floats, random: NDArray[np.uint64]) -> None:
    """Start an episode in every copy."""
    for e in range(len(position)):
        scatter(layout, e, position, velocity, random)


@njit(cache=True)
def look(layout: Layout, position: Floats, velocity: Floats, observation: Array) -> None:
    """Write what every agent of every copy sees."""
    work = sorting(layout.seen, layout.by_distance)
    for e in range(len(position)):
        observe(layout, e, position, velocity, observation, work)


@njit(cache=True)
def control_and_play(layout: Layout, actions: NDArray[np.floating], force: Floats, *arrays: Any) -> int:
    """`control` and, if all actions are finite, `play` of all copies: one call where calls take longer than steps."""
    culprit = control(layout, actions, force)
    if culprit < 0:
        play(0, len(actions), layout, force, *arrays)
    return culprit
