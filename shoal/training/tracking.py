"""`track`: sends a run's metrics, final evaluation and learning curve to Weights & Biases or MLflow.

Metrics have TensorBoard's tags, with the episode as their step. The service's run id is stored in the run folder, so
that a resumed run continues the tracked one. If the service fails during a run, the run continues without it.
"""

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from shoal.envs.faults import message
from shoal.errors import UserError, install
from shoal.runs.folder import CURVE
from shoal.runs.metrics import scalars
from shoal.runs.observer import Observer
from shoal.system.files import finite, write_whole
from shoal.training.callbacks import Callback, Run, plain
from shoal.training.config import TrainConfig
from shoal.training.result import TrainResult

TRACKED = "track.json"  # in the run folder: the run's id by service
FINISH = 60.0  # seconds that Weights & Biases may still upload after the end of the run
MOST_PARAMS, MOST_METRICS = 100, 1_000  # per request to MLflow


class Wandb:
    """A run in Weights & Biases."""

    def __init__(self, config: TrainConfig, folder: Path, known: str | None) -> None:
        """Start a new run, or continue the one with this id."""
        import wandb

        offline = os.environ.get("WANDB_MODE") == "offline"  # where it warns that it does not resume, only adds
        self._run = wandb.init(
            project=config.track_project, group=folder.parent.name, name=folder.name, config=config.settings, id=known,
            resume="allow" if known and not offline else None, dir=os.environ.get("WANDB_DIR", str(folder)),
            reinit="create_new", settings=wandb.Settings(silent=True, console="off", finish_timeout=FINISH),
        )  # fmt: skip
        self.id, self._image = str(self._run.id), wandb.Image

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def end(self, picture: Path, status: str) -> None:
        """Upload the picture, if it exists, and end the run; the status is FINISHED, FAILED or KILLED."""
        if picture.exists():
            self._run.log({picture.stem: self._image(str(picture))})
        self._run.finish(exit_code=0 if status == "FINISHED" else 1)


class Mlflow:
    """A run in MLflow, with the same methods."""

    def __init__(self, config: TrainConfig, folder: Path, known: str | None) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # else it waits for minutes for a missing server
        import mlflow
        from mlflow.entities import Metric, Param

        self._client, self._metric = mlflow.MlflowClient(), Metric
        if known:
            self._client.update_run(known, status="RUNNING")
            self.id = known
            return
        experiment = self._client.get_experiment_by_name(config.track_project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(config.track_project)
        tags = {"group": folder.parent.name}
        self.id = self._client.create_run(number, run_name=folder.name, tags=tags).info.run_id
        params = [Param(name, str(value)[:500]) for name, value in config.settings.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self.id, params=params[first : first + MOST_PARAMS])

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(_metric_name(tag), value, now, step) for tag, value in values.items()]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.id, metrics=metrics[first : first + MOST_METRICS])

    def end(self, picture: Path, status: str) -> None:
        if picture.exists():
            self._client.log_artifact(self.id, str(picture))
        self._client.set_terminated(self.id, status)


def _metric_name(tag: str) -> str:
    """A tag with the characters that MLflow allows; its file store has names as paths, and none may be a folder."""
    place, _, name = tag.partition("/")
    return "".join(char if char.isalnum() or char in "_-. /" else "_" for char in f"{place}/{name.replace('/', '.')}")


SERVICES: dict[str, type[Wandb | Mlflow]] = {"wandb": Wandb, "mlflow": Mlflow}


def check_tracker(track: str) -> None:
    """Refuse a service whose package is not installed."""
    if track != "none":
        with contextlib.suppress(ModuleNotFoundError):
            if find_spec(track) is not None:
                return
        raise UserError(f"`track` is {track}, but its package is not installed; {install('track')}.")


class Tracker(Callback):
    """Sends a run's log to the service that its `track` names; a context manager around the whole run."""

    def __init__(self, observer: Observer) -> None:
        self.result: TrainResult | None = None  # set by the caller
        self._observer, self._folder = observer, Path()
        self._service: Wandb | Mlflow | None = None

    def on_begin(self, run: Run) -> None:
        """Start the tracked run, or continue it."""
        track, self._folder = run.config.track, run.folder
        if track == "none":
            return
        try:
            known = dict(json.loads((run.folder / TRACKED).read_bytes()))
        except (OSError, ValueError, TypeError):
            known = {}
        try:
            with _in_turn():
                self._service = SERVICES[track](run.config, run.folder, known.get(track))
        except Exception as error:
            raise UserError(f"`track={track}` cannot start: {message(error)}.") from error
        write_whole(run.folder / TRACKED, json.dumps({**known, track: self._service.id}).encode(), "the run's id")
        project = run.config.track_project
        self._observer.note(f"Tracked by {track}, in the project {project}, as {run.folder.name}.")

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """Send a line of the log."""
        self._send(lambda service: service.log(tagged(line), run.episodes))

    def _send(self, action: Callable[[Wandb | Mlflow], None]) -> None:
        """Call the service; after its first failure it is no longer called."""
        if self._service is None:
            return
        try:
            action(self._service)
        except Exception as error:
            self._service = None
            self._observer.tell(f"Tracking failed ({message(error)}): the run continues without it.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Send the result, and end the tracked run."""
        result, status = self.result, "FINISHED"
        if result is None or kind is not None:
            status = "FAILED" if kind is None or issubclass(kind, Exception) else "KILLED"
        elif not result.finished:
            status = "KILLED"
        else:
            values = {name: value for name, value in result.to_json().items() if name != "phases"}
            final = {f"final/{name}": value for name, value in scalars(finite(values)).items()}
            self._send(lambda service: service.log(final, result.episodes))
        self._send(lambda service: service.end(self._folder / CURVE, status))


@contextlib.contextmanager
def _in_turn() -> Iterator[None]:
    """One process of this user at a time: MLflow's database is corrupted if several processes create it at once."""
    lock = os.open(
        Path(tempfile.gettempdir()) / f"shoal-track-{os.getuid()}", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def tagged(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log line under TensorBoard's tags."""
    from shoal.runs.events import tag

    numbers = scalars(finite({name: plain(value) for name, value in line.items() if name != "episode"}))
    return {tag(name): value for name, value in numbers.items()}
