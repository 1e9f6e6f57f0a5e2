"""Training as Python programs call it: the loop, then the pictures that `shoal train` also draws."""

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

from shoal.errors import UserError, names_checked
from shoal.report.curve import draw_run_curve, lacks_curve
from shoal.training.callbacks import Callback
from shoal.training.config import TrainConfig
from shoal.training.loop import train as run
from shoal.training.observer import Observer, Silent
from shoal.training.result import TrainResult


class _Warnings(Silent):
    """An observer that shows no progress; warnings are Python's."""

    def tell(self, sentence: str) -> None:
        """Warn of it."""
        warnings.warn(sentence, stacklevel=1)


@names_checked
def train(
    config: TrainConfig,
    resume: bool = False,
    observer: Observer | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    pictures: bool = True,
    asked: Collection[str] | None = None,
) -> TrainResult:
    """Train a team in a run folder, and draw its learning curve there.

    Args:
        config: the settings; `TrainConfig()` has the papers'.
        resume: continue the run in `config.out` from its newest checkpoint, with its own settings, except for more
            `episodes`, which extend it, and other evaluations and snapshots. A finished run that is not extended is
            returned unchanged, except that what a kill at its very end left undone is done.
        observer: is told how the run goes; None: no progress is shown, and warnings are Python's.
        trust: allow third-party code that the resumed run names as its environment; one that `config` names is trusted.
        callbacks: called after episodes, updates, evaluations and checkpoints; they may stop the run.
        pictures: draw `curve.png` when the run is finished, unless it is there.
        asked: with `resume`: names of the settings in `config` that count; None: those that differ from their defaults.

    Returns:
        The result, also in the folder's `result.json`.

    """
    if not isinstance(config, TrainConfig):
        raise UserError(f"train() takes a TrainConfig, as in train(TrainConfig(episodes=2_000)), not {config!r}.")
    result = run(config, resume, observer or _Warnings(), trust, callbacks, asked)
    if pictures and result.finished and lacks_curve(Path(result.run)):
        draw_run_curve(result)
    return result
