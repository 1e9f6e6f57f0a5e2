"""Runs of a sweep side by side: as many processes as the machine has processors and memory for."""

import contextlib
import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.algorithms.base import check_choices
from shoal.errors import UserError, counted
from shoal.runs.folder import CURVE, read_result
from shoal.runs.observer import Observer
from shoal.sweeps.grid import SweepRun
from shoal.system.child import STOPS, Child, Ended, Message, ended
from shoal.system.memory import check_fits, free_memory, human_bytes
from shoal.system.processors import usable_processors
from shoal.system.streams import say
from shoal.training.config import TrainConfig, read_config
from shoal.training.result import TrainResult

CHILD = "shoal.sweeps.run"  # the module of a run's process
PROCESS_BYTES = 500 * 10**6  # a process with torch and numba loaded, before it has a team or a ring (measured: 422 MB)
STOPPED = {128 + number for number in STOPS}  # exit codes of a run that was asked to stop


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: SweepRun
    result: TrainResult | None  # None: it is not finished
    error: str = ""  # why it failed; empty if it was only stopped
    kept: bool = False  # it was finished before


class Lines:
    """Moves the bar, and prints a line for every run that ends, with the time left."""

    def __init__(self, count: int, episodes: float, parallel: int, advance: Callable[..., None], quiet: bool) -> None:
        self._count, self._parallel, self._quiet = count, parallel, quiet
        self._ended, self._since = 0, time.monotonic()
        self._to_do, self._done = episodes, 0.0
        self._advance = advance

    def advance(self, episodes: float, skipped: bool = False) -> None:
        """Move the bar by episodes of any run; `skipped`: done before this sweep, or they will never be played."""
        self._to_do -= episodes
        if not skipped:
            self._done += episodes
        self._advance(episodes)

    def warned(self, run: SweepRun, sentence: str) -> None:
        say(f"{run.name}: {sentence}")

    def ended(self, outcome: Outcome) -> None:
        from shoal.sweeps.summary import final_return

        self._ended += 1
        if outcome.error:
            say(f"{outcome.run.name}: failed. {outcome.error}")
        elif outcome.result is not None and not self._quiet:
            value = final_return(outcome.result)
            gave = "" if value is None else f"return {value:,.2f}, "
            so_far, left = f"{self._ended} of {counted(self._count, 'run')}", self._count - self._ended
            if left > 0 and self._done:
                seconds = (time.monotonic() - self._since) * self._to_do / self._done
                slower = max(1.0, self._parallel / left)  # the last runs have fewer others beside them
                so_far += f", about {seconds * slower:,.0f} s left"
            say(f"{outcome.run.name}: {gave}{outcome.result.seconds:,.1f} s ({so_far})")


def run_side_by_side(runs: Sequence[SweepRun], parallel: int, watcher: Lines) -> tuple[list[Outcome], int | None]:
    """Run what is not finished; returns the outcomes and the signal that stopped all of them, if any.

    A run that fails does not end the others. At a signal all of them are asked to save and stop, at a second one they
    are killed.
    """
    outcomes: dict[str, Outcome] = {}
    for run in runs:
        if (result := run.result()) is not None:
            _complete(run, watcher)
            outcomes[run.name] = Outcome(run, result, kept=True)
            watcher.advance(run.config.episodes, skipped=True)
    waiting = [run for run in runs if run.name not in outcomes]
    threads = max(1, usable_processors() // parallel)
    news: queue.Queue[tuple[_Process, Message | None]] = queue.Queue()
    running: list[_Process] = []
    stopped: int | None = None
    while waiting or running:
        try:
            while waiting and len(running) < parallel and stopped is None:
                run = waiting.pop(0)
                try:
                    running.append(_Process(run, threads, news))
                except (UserError, OSError) as error:  # too many processes, or a full disk
                    reason = f"{error.strerror}: '{error.filename}'." if isinstance(error, OSError) else str(error)
                    outcomes[run.name] = Outcome(run, None, reason)
                    watcher.advance(run.config.episodes, skipped=True)
                    watcher.ended(outcomes[run.name])
            if not running:
                continue
            process, message = news.get(timeout=60)
            if message is None:
                running.remove(process)
                outcome = outcomes[process.run.name] = process.outcome(asked=stopped is not None)
                if outcome.result is not None:
                    watcher.advance(process.moved(outcome.result.episodes))
                watcher.advance(process.left(outcome), skipped=True)
                watcher.ended(outcome)
            elif "episode" in message:
                watcher.advance(process.moved(message["episode"]), skipped=message.get("before", False))
            elif "warning" in message:
                watcher.warned(process.run, message["warning"])
        except queue.Empty:
            continue
        except KeyboardInterrupt as stop:
            if stopped is not None:  # a second time: what is being saved is not waited for
                for process in running:
                    process.kill()
                raise
            stopped = getattr(stop, "number", int(signal.SIGINT))
            waiting = []
            for process in running:
                process.stop()
    for run in runs:
        outcomes.setdefault(run.name, Outcome(run, None))
    return [outcomes[run.name] for run in runs], stopped


def _complete(run: SweepRun, watcher: Lines) -> None:
    """Draw the learning curve of a finished run that was killed before it could, and remove its empty log."""
    log = log_file(run)
    if log.exists() and not log.stat().st_size:
        log.unlink()
    if not (run.folder / CURVE).exists():
        from shoal.api import train  # here, because what it imports takes its time

        try:
            train(TrainConfig(out=str(run.folder)), resume=True, observer=Observer(), trust=True)
        except UserError as error:
            watcher.warned(run, str(error))


def log_file(run: SweepRun) -> Path:
    """What the run's process writes to standard error."""
    return run.folder.with_name(f"{run.name}.log")


class _Process:
    """The process of one run."""

    def __init__(self, run: SweepRun, threads: int, news: "queue.Queue[tuple[_Process, Message | None]]") -> None:
        self.run, self._news = run, news
        self._episode, self._error = 0, ""
        threads = kept_threads(run) or threads
        settings = dataclasses.asdict(dataclasses.replace(run.config, threads=threads))
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_file(run)
        with self._log.open("wb") as log:
            spec = {"settings": settings, "resume": run.started}
            self._child = Child(CHILD, spec, "use a smaller `parallel`", threads=threads, log=log)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self._news.put((self, self._child.receive()[0]))
        except UserError as error:
            self._error = str(error)
        except (Ended, RuntimeError):  # a traceback is in the log, too
            pass
        self._child.process.wait()
        self._news.put((self, None))

    def stop(self) -> None:
        """Ask it to save and stop."""
        with contextlib.suppress(OSError):
            self._child.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._child.process.kill()

    def moved(self, episode: int) -> int:
        """Episodes since the last call."""
        before, self._episode = self._episode, min(episode, self.run.config.episodes)
        return self._episode - before

    def left(self, outcome: Outcome) -> int:
        """Episodes that will not be played: of a run that failed or stopped early all that it lacks."""
        return self.run.config.episodes - self._episode if outcome.result or outcome.error else 0

    def outcome(self, asked: bool) -> Outcome:
        """How it ended; `asked`: it was asked to stop."""
        code = self._child.process.returncode
        self._child.kill()
        logged = self._log.read_text(errors="replace").strip()
        if not logged:
            self._log.unlink()
        try:
            result = read_result(self.run.folder, TrainResult) if code == 0 or code in STOPPED else None
        except UserError as error:
            return Outcome(self.run, None, str(error))
        if result is not None or (asked and code in STOPPED):
            return Outcome(self.run, result)
        if code in STOPPED:
            return Outcome(self.run, None, f"A signal stopped it at episode {self._episode:,}; run the sweep again.")
        if self._error:
            return Outcome(self.run, None, self._error)
        last = f": {logged.splitlines()[-1]} (see '{self._log}')" if logged else ""
        return Outcome(self.run, None, f"The process {ended(code)}{last}.")


def kept_threads(run: SweepRun) -> int | None:
    """The threads of a started run that learns in torch, whose results depend on them; None: any number will do."""
    if not run.started:
        return None
    stored = read_config(run.folder)
    return None if stored.update == "native" or stored.threads is None else min(stored.threads, usable_processors())


def choose_parallel(runs: Sequence[SweepRun], asked: int | None) -> int:
    """Runs side by side: `parallel` of the command, else one per processor, as far as memory suffices."""
    if not runs:
        return 1
    most = min(len(runs), asked or usable_processors())
    needed = max(run_bytes(run.config) for run in {run.label: run for run in runs}.values())  # seeds need the same
    free = free_memory()
    fit = most if free is None else int((free - free // 10) // needed)
    if fit >= most:
        return most
    if asked is not None or fit < 1:

        def advice(usable: int) -> str:
            if usable < needed:
                return f"one run needs {human_bytes(needed)}: choose a smaller `capacity`, `batch` or `agents`"
            return f"`parallel={usable // needed}` would fit"

        count = 1 if asked is None else most
        check_fits(f"{counted(count, 'run')} side by side", needed * count, advice)
    return fit


def run_bytes(config: TrainConfig) -> int:
    """Approximate peak memory of a run: its process, the networks and an update, and the ring when it is full."""
    from shoal.replay.layout import RowLayout, ring_bytes
    from shoal.training.evaluation import build_env
    from shoal.training.resources import make_device, most_samples, update_bytes

    env = build_env(config, 1, config.seed, stagger=False)
    spec = env.spec
    env.close()
    check_choices(spec, config.algorithm)  # once, and not in the process of every run
    if config.device != "cpu":  # which always works, and torch need not be imported
        make_device(config.device)
    most = most_samples(config, spec)
    transitions = -(-min(config.capacity, most or config.capacity) // config.copies)
    ring = ring_bytes(spec, RowLayout.of(spec, config.storage), config.copies, transitions)
    return (1 + config.actors + (config.env_workers or 0)) * PROCESS_BYTES + update_bytes(config, spec) + ring
