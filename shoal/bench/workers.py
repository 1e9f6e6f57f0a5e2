"""`shoal bench workers`: a slow environment in worker processes beside the same in one process.

A step of one copy takes 2 ms, of computation or of waiting (a simulator in another process, a network). Both sides
play the same 16 copies with the same random actions, and take turns.
"""

from shoal.bench import Record
from shoal.bench.timing import interleaved
from shoal.envs import make_env
from shoal.results import Column

NAME = "gym:shoal.bench.slow_world:SlowWorld"
COPIES, SECONDS = 16, 0.002
COLUMNS = {
    "steps_per_second": Column("in workers", "steps/s"),
    "one_process_steps_per_second": Column("in one process", "steps/s"),
}
PARTS = (("computes", 2), ("waits", 2), ("waits", 8))


def run(part: tuple[str, int], seconds: float = 3.0) -> list[Record]:
    """A kind of step and a number of workers."""
    kind, workers = part
    options = {"seconds": SECONDS, "waits": kind == "waits"}
    sides = [make_env(NAME, copies=COPIES, options=options, workers=count) for count in (workers, 1)]
    for env in sides:
        env.reset()
    shared, alone = interleaved([lambda env=env: env.step(env.sample_actions()) for env in sides], seconds)  # type: ignore[misc]
    for env in sides:
        env.close()
    return [
        {
            "step": f"{kind} for {1000 * SECONDS:g} ms",
            "workers": workers,
            "steps_per_second": COPIES / shared,
            "one_process_steps_per_second": COPIES / alone,
            "ratio": alone / shared,
        }
    ]
