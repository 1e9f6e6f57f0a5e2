"""Prey that the world moves, against plain transcriptions of their rules."""

import math

import numpy as np
import pytest

from shoal.envs import make_env
from shoal.envs.controllers import controllers

MASK = 2**64 - 1


class PlainStream:
    """splitmix64 in Python's own integers."""

    def __init__(self, state):
        self.state = int(state)

    def __call__(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) / 2**53


def border(s):
    if s < 0.9:
        return 0.0
    return 10.0 * (s - 0.9) if s < 1.0 else min(math.exp(2.0 * s - 2.0), 10.0)


def plain_scripted(prey, predators, draw):
    """Rest, or one of 16 directions: the best place 0.3 ahead; ties to the lowest."""
    candidates = [(0.0, 0.0)] + [(math.cos(k * math.pi / 8), math.sin(k * math.pi / 8)) for k in range(16)]

    def score(direction):
        point = [p + 0.3 * d for p, d in zip(prey, direction, strict=True)]
        return min(math.dist(point, p) for p in predators) - sum(border(abs(c)) for c in point)

    best = max(candidates, key=score)  # the first of equals
    return 4.0 * best[0], 4.0 * best[1]


def plain_facmac(scale):
    def rule(prey, predators, draw):
        hunter = min(predators, key=lambda p: math.dist(prey, p))
        best, best_score = (0.0, 0.0), -1.0
        for _ in range(100):
            radius, angle = math.sqrt(draw()), 2.0 * math.pi * draw()
            offset = (radius * math.cos(angle), radius * math.sin(angle))
            point = (prey[0] + offset[0], prey[1] + offset[1])
            score = -1e7 if any(math.dist(point, p) < 0.125 for p in predators) else math.dist(point, hunter)
            if score > best_score:
                best, best_score = offset, score
        return scale * best[0], scale * best[1]

    return rule


def plain_random(prey, predators, draw):
    return 4.0 * (2.0 * draw() - 1.0), 4.0 * (2.0 * draw() - 1.0)


RULES = [
    ({"prey": "scripted"}, plain_scripted),
    ({"prey": "facmac"}, plain_facmac(1.0)),
    ({"prey": "facmac", "prey_scale": 4}, plain_facmac(4.0)),
    ({"prey": "random"}, plain_random),
]


@pytest.mark.parametrize(("settings", "rule"), RULES)
@pytest.mark.parametrize(("predators", "prey_count"), [(1, 1), (3, 1), (6, 4), (12, 4)])
def test_prey_follows_its_rule(settings, rule, predators, prey_count):
    """The push is read off the velocity of prey that touches nobody and is slower than its limit."""
    env = make_env("predator-prey", predators, copies=8, prey_count=prey_count, obstacles=0, seed=3, **settings)
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(12):
        env.position[:, :predators] = rng.uniform(-1.1, 1.1, (8, predators, 2))
        env.position[:, predators:] = rng.uniform(-1.1, 1.1, (8, prey_count, 2))
        before, streams = env.position.copy(), [PlainStream(s) for s in env.state()["random"]]
        env.velocity[:] = 0.0
        step = env.step(np.eye(5)[rng.integers(5, size=(8, predators))])
        for e in np.flatnonzero(~step.ended):
            hunters = [tuple(p) for p in before[e, :predators]]
            for k in range(predators, predators + prey_count):
                push = rule(tuple(before[e, k]), hunters, streams[e])
                gaps = np.linalg.norm(before[e] - before[e, k], axis=1)
                if np.delete(gaps, k).min() > 0.3:
                    np.testing.assert_allclose(env.velocity[e, k], np.multiply(0.1, push), atol=1e-9)
                    compared += 1
            assert int(env.state()["random"][e]) == streams[e].state  # nothing else was drawn
    assert compared > 20


def test_scripted_prey_rests_only_where_no_direction_is_better():
    """Surrounded evenly and closely, going anywhere leads towards a predator."""
    env = make_env("predator-prey", 16, prey_count=1, obstacles=0, copies=1)
    ring = np.arange(16) * math.pi / 8
    env.position[0, :16] = 0.9 * np.stack([np.cos(ring), np.sin(ring)], 1)
    env.position[0, 16] = 0.0
    env.step(np.zeros((1, 16, 5)))
    np.testing.assert_array_equal(env.velocity[0, 16], 0.0)


def test_facmac_prey_rests_if_every_offset_ends_in_a_predator():
    env = make_env("predator-prey", 400, prey="facmac", prey_count=1, obstacles=0, copies=1)
    grid = np.linspace(-1.2, 1.2, 20)  # so dense that no point is farther than 0.125 from a predator
    env.position[0, :400] = np.stack(np.meshgrid(grid, grid), -1).reshape(400, 2)
    env.position[0, 400] = 0.0
    env.step(np.zeros((1, 400, 5)))
    np.testing.assert_allclose(env.velocity[0, 400], 0.0, atol=1e-9)  # the four next to it push evenly


def test_scripted_prey_is_hard_for_random_predators_and_catchable_by_chasers():
    rng = np.random.default_rng(0)
    env = make_env("predator-prey", 3, copies=4000, obstacles=0, seed=1, stagger=False)
    chase = controllers(env)["chasers"]

    def predator_return(act):
        return sum(env.step(act()).reward[:, 0].mean() for _ in range(env.spec.episode_length))

    assert 0.1 < predator_return(lambda: np.eye(5)[rng.integers(5, size=(4000, 3))]) < 0.8
    assert 5.0 < predator_return(lambda: chase(env)) < 11.0
