"""Rule set openai against a plain transcription of its definitions, and against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.envs import make_env
from shoal.envs.physics import CONTACT_FORCE, penetration


class Plain:
    """One copy of a world, one entity at a time, as slowly and as literally as possible."""

    def __init__(self, position, velocity, sizes, accelerations, max_speeds, colliders):
        self.position = [tuple(p) for p in position]
        self.velocity = [tuple(v) for v in velocity]
        self.sizes, self.accelerations, self.max_speeds = sizes, accelerations, max_speeds
        self.colliders = colliders

    def step(self, actions):
        """actions: for each body five numbers: nothing, +x, -x, +y, -y."""
        forces = [self.own_force(i, action) for i, action in enumerate(actions)]
        for i in range(len(actions)):
            for other in range(self.colliders):
                if other != i:
                    push = self.contact(i, other)
                    forces[i] = (forces[i][0] + push[0], forces[i][1] + push[1])
        for i, force in enumerate(forces):
            velocity = [0.75 * v + 0.1 * f for v, f in zip(self.velocity[i], force, strict=True)]
            speed = math.hypot(*velocity)
            if speed > self.max_speeds[i]:
                velocity = [v * self.max_speeds[i] / speed for v in velocity]
            self.velocity[i] = tuple(velocity)
            self.position[i] = tuple(p + 0.1 * v for p, v in zip(self.position[i], velocity, strict=True))

    def own_force(self, i, action):
        a = self.accelerations[i]
        return (a * (action[1] - action[2]), a * (action[3] - action[4]))

    def contact(self, i, other):
        """The push that i feels from another."""
        delta = [a - b for a, b in zip(self.position[i], self.position[other], strict=True)]
        distance = math.hypot(*delta)
        over = -(distance - self.sizes[i] - self.sizes[other]) / 0.001
        depth = 0.001 * (over + math.log1p(math.exp(-over)) if over > 0 else math.log1p(math.exp(over)))
        return [100.0 * d / distance * depth for d in delta]

    def distance(self, i, other):
        return math.dist(self.position[i], self.position[other])

    def relative(self, i, others):
        return [c for o in others for c in np.subtract(self.position[o], self.position[i])]


class PlainNavigation(Plain):
    def __init__(self, position, velocity, agents):
        super().__init__(position, velocity, [0.15] * agents, [5.0] * agents, [math.inf] * agents, agents)
        self.agents, self.landmarks = range(agents), range(agents, len(position))

    def rewards(self):
        """Every agent gets the sum over agents of: minus the distances, minus all touches, itself among them."""
        total = 0.0
        for i in self.agents:
            total -= sum(min(self.distance(landmark, j) for j in self.agents) for landmark in self.landmarks)
            total -= sum(self.distance(i, j) < 0.3 for j in self.agents)
        return [total for _ in self.agents]

    def observation(self, i):
        others = [j for j in self.agents if j != i]
        seen = self.relative(i, self.landmarks) + self.relative(i, others)
        return [*self.velocity[i], *self.position[i], *seen, *[0.0] * (2 * len(others))]


class PlainPursuit(Plain):
    def __init__(self, position, velocity, predators, prey):
        sizes = [0.075] * predators + [0.05] * prey + [0.2] * (len(position) - predators - prey)
        accelerations, max_speeds = [3.0] * predators + [4.0] * prey, [1.0] * predators + [1.3] * prey
        super().__init__(position, velocity, sizes, accelerations, max_speeds, len(position))
        self.predators, self.prey = range(predators), range(predators, predators + prey)
        self.obstacles = range(predators + prey, len(position))

    def rewards(self):
        touches = {k: sum(self.distance(k, p) < 0.125 for p in self.predators) for k in self.prey}
        caught = 10.0 * sum(touches.values())
        outside = {k: sum(self.border(abs(c)) for c in self.position[k]) for k in self.prey}
        return [caught for _ in self.predators] + [-10.0 * touches[k] - outside[k] for k in self.prey]

    @staticmethod
    def border(s):
        if s < 0.9:
            return 0.0
        if s < 1.0:
            return 10.0 * (s - 0.9)
        return min(math.exp(2.0 * s - 2.0), 10.0)

    def observation(self, i):
        others = [j for j in [*self.predators, *self.prey] if j != i]
        moving = [c for k in self.prey if k != i for c in self.velocity[k]]
        return [
            *self.velocity[i],
            *self.position[i],
            *self.relative(i, self.obstacles),
            *self.relative(i, others),
            *moving,
        ]


def assert_same_steps(env, plain, actions):
    """Play the actions (T, N, 5) in both, from the same state, and compare all that they say."""
    for action in actions:
        step = env.step(action[None])
        plain.step(action)
        bodies = len(action)
        np.testing.assert_allclose(env.position[0, :bodies], plain.position[:bodies], atol=1e-9)
        np.testing.assert_allclose(env.velocity[0, :bodies], plain.velocity[:bodies], atol=1e-9)
        np.testing.assert_allclose(step.reward[0], plain.rewards(), rtol=1e-6, atol=1e-5)
        for i, size in enumerate(env.spec.observation_sizes):
            np.testing.assert_allclose(step.observation[0, i, :size], plain.observation(i), rtol=1e-6, atol=1e-5)
            assert not step.observation[0, i, size:].any()


def crowd(env, width, seed):
    """Put the bodies into a small square, so that they press on each other, and set them moving."""
    rng = np.random.default_rng(seed)
    bodies = env.spec.agents
    env.position[0, :bodies] = rng.uniform(-width, width, (bodies, 2))
    env.velocity[0, :bodies] = rng.uniform(-1, 1, (bodies, 2))


@pytest.mark.parametrize(("agents", "landmarks"), [(1, 1), (2, 3), (3, 3), (6, 6), (12, 5), (24, 24)])
@pytest.mark.parametrize("width", [0.2, 1.0])
def test_cooperative_navigation(agents, landmarks, width):
    env = make_env("cooperative-navigation", agents, rules="openai", landmarks=landmarks)
    crowd(env, width, seed=agents)
    plain = PlainNavigation(env.position[0], env.velocity[0], agents)
    rng = np.random.default_rng(agents)
    assert_same_steps(env, plain, rng.uniform(-1, 2, (12, agents, 5)))  # any real numbers are forces


@pytest.mark.parametrize(("predators", "prey", "obstacles"), [(1, 1, 0), (3, 1, 2), (2, 5, 1), (6, 2, 2), (16, 5, 5)])
@pytest.mark.parametrize("width", [0.2, 1.2])
def test_predator_prey(predators, prey, obstacles, width):
    env = make_env("predator-prey", predators, rules="openai", prey="learned", prey_count=prey, obstacles=obstacles)
    crowd(env, width, seed=predators)
    plain = PlainPursuit(env.position[0], env.velocity[0], predators, prey)
    rng = np.random.default_rng(prey)
    assert_same_steps(env, plain, np.eye(5)[rng.integers(5, size=(12, predators + prey))])


@pytest.mark.parametrize(
    ("gap", "force"), [(0.0, 0.069315), (0.001, 0.031326), (0.005, 6.7e-4), (-0.01, 1.0), (-0.1, 10.0)]
)
def test_contact_force(gap, force):
    assert CONTACT_FORCE * penetration(gap) == pytest.approx(force, rel=1e-2 if gap == 0.005 else 1e-4)


@settings(max_examples=200, deadline=None)
@given(st.floats(-0.5, 0.5))
def test_contact_force_is_the_softplus(gap):
    assert penetration(gap) == pytest.approx(0.001 * np.logaddexp(0.0, -gap / 0.001), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("rules", "right", "expected"),
    [
        ("openai", 1, [(0.05, 0.5), (0.1375, 0.875), (0.253125, 1.15625)]),
        ("mpe2", 2, [(0.0, 0.5), (0.05, 0.875), (0.1375, 1.15625)]),
    ],
)
def test_constant_force_from_rest(rules, right, expected):
    env = make_env("cooperative-navigation", 1, rules=rules, stagger=False)
    env.position[0, 0] = 0.0
    for x, v in expected:
        env.step(np.eye(5)[[[right]]])
        np.testing.assert_allclose(env.position[0, 0], (x, 0.0), atol=1e-12)
        np.testing.assert_allclose(env.velocity[0, 0], (v, 0.0), atol=1e-12)


def test_top_speeds_and_when_they_are_reached():
    """Predators at step 7, prey at step 6."""
    env = make_env("predator-prey", 1, rules="openai", prey="learned", obstacles=0)
    env.position[0] = [(-5.0, 0.0), (5.0, 0.0)]
    speeds = []
    for _ in range(8):
        env.step(np.eye(5)[[[1, 3]]])
        speeds.append((env.velocity[0, 0, 0], env.velocity[0, 1, 1]))
    predator, prey = np.array(speeds).T
    assert predator[5] < 1.0 - 1e-9
    assert prey[4] < 1.3 - 1e-9
    np.testing.assert_allclose(predator[6:], 1.0)
    np.testing.assert_allclose(prey[5:], 1.3)


@pytest.mark.parametrize("agents", [1, 3, 7])
def test_rewards_of_the_rule_sets_convert(agents):
    """In the same place: R_openai = 2 S - N, S the sum of the mpe2 rewards."""
    openai = make_env("cooperative-navigation", agents, copies=20, rules="openai", stagger=False)
    openai.position[:, :agents] *= 0.3
    shared = openai.step(np.zeros((20, agents, 5))).reward
    mpe2 = make_env("cooperative-navigation", agents, copies=20, stagger=False)
    mpe2.position[:], mpe2.velocity[:] = openai.position, 0.0  # at rest, so that the step moves nobody
    total = mpe2.step(np.zeros((20, agents, 5))).reward.sum(1)
    np.testing.assert_allclose(shared, np.repeat(2 * total[:, None] - agents, agents, 1), rtol=1e-5)
    np.testing.assert_array_equal(mpe2.position, openai.position)


@pytest.mark.parametrize(("agents", "size"), [(3, 16), (6, 26), (12, 50), (24, 98), (48, 194)])
def test_observation_sizes_of_predators(agents, size):
    assert make_env("predator-prey", agents, rules="openai").spec.observation_sizes == (size,) * agents
