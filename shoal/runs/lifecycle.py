"""The life of a run, of a team or of a classifier: begin or resume, train to the end or to a signal, finish.

`begin` and `resume` build a training in memory, which then runs in its folder. Neither they nor what they import
need torch or numba, so that a run that is refused costs no more than a moment.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.folder import CHECKPOINTS, CONFIG, RESULT, RunFolder, new_folder, read_result, result_json
from shoal.runs.interrupt import Interrupt
from shoal.runs.metrics import LogMark, MetricsLog
from shoal.runs.observer import Observer
from shoal.runs.settings import Stored, check_kept, check_settings, read_settings
from shoal.system.files import working_directory
from shoal.waiting import said_if_long

if TYPE_CHECKING:
    from shoal.runs.checkpoint import Checkpoint


class RunResult(Protocol):
    """The result of a run: a dataclass."""

    @property
    def counters(self) -> dict[str, int]:
        """How much was done, by the names that a checkpoint has for it."""


Result = TypeVar("Result", bound=RunResult)
Made = TypeVar("Made", bound=RunResult, covariant=True)


class Trainable(Protocol[Made]):
    """A training in memory that runs in a folder and can be saved between any two of its steps."""

    config: Any  # a `StoredConfig`, with the log's switch `tensorboard`
    counter: str  # what it counts, and names its checkpoints by: episode or step

    @property
    def threads(self) -> int | None:
        """Threads on whose number the last bits depend; None: they do not."""

    @property
    def log_mark(self) -> LogMark:
        """The end of metrics.jsonl."""

    @property
    def started(self) -> bool:
        """Whether even one step was possible."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do, so that a signal comes too late."""

    def load(self, checkpoint: "Checkpoint", folder: RunFolder) -> None:
        """Continue from a checkpoint."""

    def run(self, folder: RunFolder, log: MetricsLog, interrupt: Interrupt) -> None:
        """Begin or resume, and train to the end or to a signal; either way the last state is saved."""

    def close(self) -> None:
        """Training has ended, perhaps by an error."""

    def result(self, path: Path, signal: int | None = None) -> Made:
        """The results so far."""

    def finished(self, path: Path) -> Made:
        """The results of a finished training, with the evaluations that come last."""


Build = Callable[[Any], Trainable[Result]]  # builds a training from its settings; invalid ones are refused


def begin(config: Stored, name: str, build: Build[Result], observer: Observer) -> Result:
    """Train in a new folder: `config.out`, or one under runs/ that is called `name`."""
    start = working_directory()  # building a world may change it
    training = build(config)
    with new_folder(training.config.out, name, start) as folder:
        folder.write(CONFIG, training.config.to_json())  # the first file: a run killed from now on can be resumed
        return _carry_out(training, folder, None, observer)


@contextlib.contextmanager
def reopened(kind: type[Stored], out: str | None, asked: Mapping[str, Any]) -> Iterator[tuple[RunFolder, Stored]]:
    """Lock the folder of a run to resume, and read its settings; other ones than its own are refused."""
    if not out:
        raise UserError("`resume` needs a run folder: set `out`.")
    read_settings(Path(out), kind)  # is it a run at all?
    with RunFolder(Path(out)) as folder:
        stored = read_settings(folder.path, kind)
        check_kept(asked, stored, folder.path)
        yield folder, stored


def resume(
    folder: RunFolder, stored: Stored, asked: Mapping[str, Any], kind: type[Result], build: Build[Result],
    observer: Observer,
) -> Result:  # fmt: skip
    """Continue a run from its newest checkpoint; a finished one that is not extended is returned as it is."""
    with said_if_long(observer.note, "Checking the checkpoints."):
        checkpoint = folder.checkpoints.load(observer.tell)
    check_settings(stored, folder.path, checkpoint)
    config = stored.resumed({**asked, "out": str(folder.path)}, checkpoint)
    result = finished_result(folder.path, checkpoint, kind)
    if result is not None and not (checkpoint is not None and config.extends(checkpoint)):
        folder.checkpoints.keep_newest()  # it may have been killed before it could
        _tell_log_damage(checkpoint, folder.path, observer)
        observer.tell(f"The run in '{folder.path}' is finished; there is nothing to resume.")
        return result
    training = build(config)
    if checkpoint is None:
        observer.tell(f"'{folder.path}' has no checkpoint yet: starting over.")
    return _carry_out(training, folder, checkpoint, observer)


def _carry_out(
    training: Trainable[Result], folder: RunFolder, checkpoint: "Checkpoint | None", observer: Observer
) -> Result:
    """Train to the end or to the first signal; only the former has a result.json."""
    try:
        with Interrupt(observer.tell) as interrupt:
            if checkpoint is not None:
                _load(training, checkpoint, folder, observer)
            _train(training, folder, interrupt)
        if interrupt.signal is not None and not training.complete:
            return training.result(folder.path, interrupt.signal)
        try:
            result = training.finished(folder.path)
        except KeyboardInterrupt as stop:  # everything is trained and saved
            return training.result(folder.path, getattr(stop, "number", int(signal.SIGINT)))
    finally:
        observer.end()
    folder.write(RESULT, result_json(result))
    folder.checkpoints.keep_newest()
    return result


def _load(training: Trainable[Result], checkpoint: "Checkpoint", folder: RunFolder, observer: Observer) -> None:
    with said_if_long(observer.note, "Loading the checkpoint and its replay."):
        training.load(checkpoint, folder)
    before = checkpoint.meta["threads"]
    if training.threads not in (None, before):
        observer.tell(
            f"The run was trained with `threads={before}`, now it has {training.threads}: results will not be "
            "bit-identical."
        )
    _tell_log_damage(checkpoint, folder.path, observer)


def _train(training: Trainable[Result], folder: RunFolder, interrupt: Interrupt) -> None:
    config = training.config
    log = MetricsLog(folder.path, config.tensorboard, training.log_mark.size, training.counter, config.settings)
    disk.delete(folder.path / RESULT)  # of a run that is extended; before its new length is known
    folder.write(CONFIG, config.to_json())
    try:
        training.run(folder, log, interrupt)
    except Exception:
        if not training.started:  # not even one step is possible
            folder.discard(log.paths)
        raise
    finally:
        training.close()
        log.close()


def _tell_log_damage(checkpoint: "Checkpoint | None", folder: Path, observer: Observer) -> None:
    """Warn if metrics.jsonl does not match the checkpoint; the run continues anyway."""
    if checkpoint is not None and (damage := LogMark(*checkpoint.meta["log"]).damage(folder)):
        observer.tell(damage)


def finished_result(folder: Path, checkpoint: "Checkpoint | None", kind: type[Result]) -> Result | None:
    """The result of a finished run; None if there is none yet. A `UserError` if it does not match the checkpoint."""
    result = read_result(folder, kind)
    if result is None:
        return None
    if checkpoint is None:
        raise no_checkpoint(folder)
    made = {"steps": checkpoint.episode, **checkpoint.meta}
    for name, count in result.counters.items():
        if made[name] != count:
            raise UserError(
                f"'{folder / RESULT}' does not match checkpoint '{checkpoint.path}': it has {count:,} {name}, the "
                f"checkpoint {made[name]:,}; remove it and resume the run to recreate it."
            )
    return result


def no_checkpoint(folder: Path) -> UserError:
    """The error for a run that has no checkpoint."""
    if (folder / RESULT).exists():
        return UserError(
            f"The run in '{folder}' is finished, but its checkpoints are gone: restore '{folder / CHECKPOINTS}' "
            f"or remove {RESULT} and resume the run."
        )
    return UserError(f"'{folder}' has no checkpoint yet: train it first, or resume it.")
