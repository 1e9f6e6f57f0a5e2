"""Training as Python programs and `shoal train` call it: checks, the life of a run, then the picture.

Torch, numba and what draws are imported after the checks, so that a mistake costs a moment.
"""

import warnings
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from shoal.errors import UserError, names_checked
from shoal.runs import lifecycle
from shoal.runs.folder import CURVE
from shoal.runs.observer import Observer, Quiet
from shoal.training.callbacks import Callback, check_callbacks
from shoal.training.config import TrainConfig
from shoal.training.prechecks import check_code, check_new
from shoal.training.result import TrainResult
from shoal.training.tracking import Tracker, check_tracker
from shoal.waiting import said_if_long


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
    """Train a team in a run folder, and draw its learning curve and its diagnosis there.

    Args:
        config: the settings; `TrainConfig()` has the papers'.
        resume: continue the run in `config.out` from its newest checkpoint, with its own settings, except for more
            `episodes`, which extend it, and other evaluations and snapshots. A finished run that is not extended is
            returned unchanged, except that what a kill at its very end left undone is done.
        observer: receives the run's progress; None: no progress is shown, and warnings are Python's.
        trust: allow third-party code that the resumed run names as its environment; one that `config` names is trusted.
        callbacks: called after episodes, updates, evaluations and checkpoints; they may stop the run.
        pictures: draw `curve.png` and `diagnosis.png` when the run is finished, unless they are there.
        asked: with `resume`: names of the settings in `config` that count; None: those that differ from their defaults.

    Returns:
        The result, also in the folder's `result.json`.

    """
    if not isinstance(config, TrainConfig):
        raise UserError(f"train() takes a TrainConfig, as in train(TrainConfig(episodes=2_000)), not {config!r}.")
    observer = observer or Quiet(lambda sentence: warnings.warn(sentence, stacklevel=1))
    check_callbacks(callbacks)
    with Tracker(observer) as tracker:
        if resume:
            names = config.asked(asked)
            with lifecycle.reopened(TrainConfig, config.out, names) as (folder, stored):
                check_code(stored, folder.path, names, trust)
                check_tracker(names.get("track", stored.track))
                from shoal.training.loop import build

                new_run = partial(build, observer=observer, callbacks=[*callbacks, tracker])
                result = lifecycle.resume(folder, stored, names, TrainResult, new_run, observer)
        else:
            config = config.checked()
            check_new(config)
            from shoal.training.loop import build

            new_run = partial(build, observer=observer, callbacks=[*callbacks, tracker])
            result = lifecycle.begin(config, f"{config.env}-{config.algorithm}-seed{config.seed}", new_run, observer)
        if pictures and result.finished and not (Path(result.run) / CURVE).exists():
            from shoal.report.curve import draw_run_curve
            from shoal.report.symptoms import draw_run_diagnosis

            with said_if_long(observer.note, "Drawing the learning curve."):
                draw_run_diagnosis(Path(result.run))
                draw_run_curve(result)
        tracker.result = result
    return result
