"""`shoal bench workers`: a slow environment in worker processes beside the same in one process.

A step of one copy takes 2 ms, of computation or of waiting (a simulator in another process, a network). Both sides
play the same 16 copies with the same random actions, and take turns.
"""

from typing import Annotated, TypedDict

from shoal.bench.timing import interleaved
from shoal.envs import make_env
from shoal.results import Column

NAME = "gym:shoal.bench.slow_world:SlowWorld"
COPIES, SECONDS = 16, 0.002


class Row(TypedDict):
    """One number of workers."""

    step: str
    workers: int
    steps_per_second: Annotated[float, Column("in workers", "steps/s")]
    one_process_steps_per_second: Annotated[float, Column("in one process", "steps/s")]
    ratio: float


def run(
    parts: tuple[tuple[str, int], ...] = (("computes", 2), ("waits", 2), ("waits", 8)), seconds: float = 3.0
) -> list[Row]:
    """One row for each kind of step and number of workers; each takes about `seconds`."""
    rows: list[Row] = []
    for kind, workers in parts:
        options = {"seconds": SECONDS, "waits": kind == "waits"}
        sides = [make_env(NAME, copies=COPIES, options=options, workers=count) for count in (workers, 1)]
        for env in sides:
            env.reset()
        times = interleaved([lambda env=env: env.step(env.sample_actions()) for env in sides], seconds)  # type: ignore[misc]
        for env in sides:
            env.close()
        rows.append(
            {
                "step": f"{kind} for {1000 * SECONDS:g} ms",
                "workers": workers,
                "steps_per_second": COPIES / times[0],
                "one_process_steps_per_second": COPIES / times[1],
                "ratio": times[1] / times[0],
            }
        )
    return rows
