"""Training as Python programs call it: the loop, then the pictures that `shoal train` also draws."""

from pathlib import Path

from shoal.training.config import TrainConfig
from shoal.training.early import RESULT
from shoal.training.loop import train as run
from shoal.training.observer import Observer
from shoal.training.result import TrainResult


def train(
    config: TrainConfig,
    resume: bool = False,
    observer: Observer | None = None,
    trust: bool = False,
    pictures: bool = True,
) -> TrainResult:
    """Train a team in a run folder, and draw its learning curve there.

    Args:
        config: the settings; `TrainConfig()` has the papers'.
        resume: continue the run in `config.out` from its newest checkpoint, with its own settings. A finished run is
            returned unchanged.
        observer: is told how the run goes; None: nothing is shown.
        trust: allow third-party code that the resumed run names as its environment; one that `config` names is trusted.
        pictures: draw `curve.png` when the run is finished.

    Returns:
        The result, also in the folder's `result.json`.

    """
    was_finished = resume and config.out is not None and (Path(config.out) / RESULT).exists()
    result = run(config, resume, observer, trust)
    if pictures and result.finished and not was_finished:
        from shoal.report.curve import draw_run_curve  # here, because matplotlib takes its time to import

        draw_run_curve(result)
    return result
