"""Entities by distance: the same numbers as a sort of the views by index, also where distances are (almost) equal."""

import numpy as np
import pytest

from shoal.envs import make_env


def by_distance(seen, parts):
    """The view with each part (first number, entities, first number of their velocities or None) sorted by distance."""
    seen = seen.copy()
    for first, count, velocities in parts:
        places = seen[first : first + 2 * count].reshape(count, 2)
        order = np.argsort((places.astype(np.float64) ** 2).sum(1), kind="stable")
        for start in (first,) if velocities is None else (first, velocities):
            part = slice(start, start + 2 * count)
            seen[part] = seen[part].reshape(count, 2)[order].ravel()
    return seen


@pytest.mark.parametrize(
    ("predators", "prey", "obstacles"), [(1, 1, 0), (2, 1, 3), (8, 3, 5), (9, 8, 17), (3, 20, 2), (30, 1, 33)]
)
@pytest.mark.parametrize("spread", [(3, 1.0), (1000, 1e-6), (2**30, 1e-9)], ids=["ties", "almost ties", "anywhere"])
def test_views_by_distance_are_sorted_views_by_index(predators, prey, obstacles, spread):
    settings = {"prey": "learned", "prey_count": prey, "obstacles": obstacles, "copies": 2}
    index, distance = (make_env("predator-prey", predators, entities=e, **settings) for e in ("index", "distance"))
    rng, (numbers, scale) = np.random.default_rng(5), spread
    index.position[:] = np.round(rng.normal(size=index.position.shape)) + scale * rng.integers(
        -numbers, numbers, index.position.shape
    )
    index.velocity[:] = rng.normal(size=index.velocity.shape)
    distance.position[:], distance.velocity[:] = index.position, index.velocity
    plain, found = index.observe(), distance.observe()
    for e in range(2):
        for i in range(predators + prey):
            hunters, hunted = 4 + 2 * obstacles, prey - (i >= predators)
            flee = hunters + 2 * (predators - (i < predators))
            parts = [(4, obstacles, None), (hunters, (flee - hunters) // 2, None), (flee, hunted, flee + 2 * hunted)]
            np.testing.assert_array_equal(found[e, i], by_distance(plain[e, i], parts))
