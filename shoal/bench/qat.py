"""`shoal bench qat`: the cost of quantization-aware training relative to plain training, one thread.

Teams: one update of all trainers, while ranges are only observed and with quantization on (MADDPG, cooperative
navigation). Stable-Baselines3 models: a whole `learn` with the callback, rollouts included.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from shoal.bench import Record
from shoal.bench.timing import interleaved, torch_threads
from shoal.bench.update import filled_training
from shoal.errors import UserError, counted, install
from shoal.results import Column
from shoal.training.loop import Training

BITS = 8
DELAYS = {"observing": 1.0, "quantized": 0.0}
TASKS = {
    "ppo": ("CartPole-v1", 512, {"n_steps": 512, "batch_size": 64}),
    "ddpg": ("Pendulum-v1", 200, {"learning_starts": 0, "batch_size": 256}),
}
"""Environment, steps of one `learn`, and settings; two layers of 64."""
COLUMNS = {"plain_ms": Column("plain", "ms"), "qat_ms": Column("qat", "ms")}
PARTS = (3, 12, "ppo", "ddpg")


@torch_threads(1)
def run(part: int | str, seconds: float = 6.0, transitions: int = 2_000) -> list[Record]:
    """The stages of a team, by its number of agents, or of a Stable-Baselines3 algorithm."""
    _stable_baselines3()  # missed before minutes of measuring, not after
    sides: list[Callable[[], object]]
    if isinstance(part, int):
        what, one, stages = f"maddpg, {counted(part, 'agent')}", "update", list(DELAYS)
        sides = [team(part, transitions, stage).update for stage in (None, *stages)]
    else:
        what, one, stages = f"{part}, {TASKS[part][0]}", f"learn of {TASKS[part][1]} steps", ["quantized"]
        sides = [_learn(part, quantized) for quantized in (False, True)]
    plain, *times = interleaved(sides, seconds, least=3)
    return [
        {"what": what, "one": one, "stage": stage, "plain_ms": 1e3 * plain, "qat_ms": 1e3 * time, "ratio": time / plain}
        for stage, time in zip(stages, times, strict=True)
    ]


def team(agents: int, transitions: int, stage: str | None) -> Training:
    """A training ready to update at a stage of quantization-aware training; None: plain."""
    qat: dict[str, Any] = {} if stage is None else {"qat_bits": BITS, "quant_delay": DELAYS[stage]}
    return filled_training(agents, transitions=transitions, env="cooperative-navigation", threads=1, **qat)


def _stable_baselines3() -> ModuleType:
    try:
        import stable_baselines3
    except ImportError:
        raise UserError(f"bench qat needs Stable-Baselines3; {install('sb3')}.") from None
    return stable_baselines3


def _learn(algorithm: str, quantized: bool) -> Callable[[], object]:
    from shoal.quantization.callback import QatCallback

    env, steps, settings = TASKS[algorithm]
    layers = {"net_arch": [64, 64]}
    model = getattr(_stable_baselines3(), algorithm.upper())("MlpPolicy", env, policy_kwargs=layers, seed=0, **settings)
    return partial(model.learn, steps, callback=QatCallback(BITS, delay=0.0) if quantized else None)
