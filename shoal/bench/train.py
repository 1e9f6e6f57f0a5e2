"""`shoal bench train`: whole training under the papers' schedule, beside the ceiling that bare products alone set."""

import time
from typing import Any

from shoal.bench.bare import BareProducts
from shoal.bench.update import Algorithm, filled_training


def run(
    agents: tuple[int, ...] = (3, 12), seconds: float = 10.0, algorithm: Algorithm = "maddpg"
) -> list[dict[str, Any]]:
    """A row for each number of agents: steps/s of training (100 steps, one update), and of the products alone."""
    rows = []
    for n in agents:
        training = filled_training(n, algorithm)
        training.updates = training.samples // training.config.update_every  # the warm-up's backlog is not timed
        spec, every = training.env.spec, training.config.update_every
        bare = BareProducts(spec.agents, spec.observation_size, spec.action_size, training.config.batch)
        whole = products = 0.0
        steps = rounds = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            before = training.samples
            start = time.perf_counter()
            while not training.owes_update():
                training.step()
            training.update()
            middle = time.perf_counter()
            bare()
            whole, products = whole + middle - start, products + time.perf_counter() - middle
            steps, rounds = steps + training.samples - before, rounds + 1
        rows.append(
            {
                "agents": n,
                "algorithm": algorithm,
                "copies": training.config.copies,
                "steps_per_second": steps / whole,
                "ceiling_steps_per_second": rounds * every / products,
                "ratio": steps / whole * products / (rounds * every),
            }
        )
    return rows
