"""What a run does at certain episodes besides logging and checkpoints: evaluations, its best weights, snapshots.

None of it changes what is learned: evaluations play in a world of their own, without noise, on the same initial states
each time, and the phase clock counts none of it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.runs import disk
from shoal.runs.interrupt import Interrupt
from shoal.runs.observer import Observer
from shoal.seeding import stream_seed
from shoal.training.config import TrainConfig
from shoal.training.evaluation import Evaluation, build_env, play, team_act
from shoal.training.saved_team import BEST, read_weights, snapshot_path, write_weights

if TYPE_CHECKING:
    from shoal.training.loop import Training


class Abandoned(Exception):
    """A signal arrived during an evaluation; it is repeated when the run is resumed."""


class Milestones:
    """Evaluates a team, keeps its best weights and takes snapshots, at the episodes that the configuration names."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.passed = 0
        """Episodes up to which everything is done."""
        self.latest: Evaluation | None = None
        """The last evaluation of this process."""
        self.best: float | None = None
        """The return of the best weights so far: those on disk."""
        self._env = None
        if config.evaluate_every:  # built now, so that what is wrong with it is found before the run starts
            seed = stream_seed(config.seed, "evaluations")
            self._env = build_env(config, min(config.evaluate_during, 100), seed, stagger=False)
            self._env.reset()
            self._begin = self._env.state()

    def begin(self, folder: Path, tell: Callable[[str], None]) -> None:
        """The run starts or resumes: find out about its best weights so far."""
        if self._env is None or not (path := folder / BEST).exists():
            return
        try:
            self.best = self._return_of(read_weights(path).meta)
        except (disk.Damaged, OSError) as error:
            tell(f"The best weights in '{path}' are damaged ({error}); those of the next evaluation replace them.")

    def _return_of(self, facts: dict[str, Any]) -> float:
        """The return of weights with these facts, unless they were copied from another run."""
        if not isinstance(value := facts.get("return_mean"), float):
            raise disk.Damaged("they were not evaluated")
        settings, may_differ = self.config.settings, self.config.changeable | self.config.settled_later
        if facts["settings"].keys() <= settings.keys():  # else those of another version
            trained = self.config.stored(facts["settings"]).settings
            if all(settings[name] == trained[name] for name in settings.keys() - may_differ):
                return value
        raise disk.Damaged("they are another run's")

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def reach(self, training: "Training", folder: Path, interrupt: Interrupt, observer: Observer) -> Evaluation | None:
        """Do what is due after these episodes, outside of the training time; returns the evaluation, if any."""
        episodes, passed, evaluation = training.episodes, self.passed, None
        if episodes == passed:
            return None
        every, snapshots, total = self.config.evaluate_every, self.config.snapshots, self.config.episodes
        evaluation_due = every > 0 and episodes // every > passed // every
        snapshot_due = min(episodes, total) * snapshots // total > passed * snapshots // total
        if evaluation_due or snapshot_due:
            training.learner.mean_losses()  # never keep diverged weights
            training.clock("other")
            try:
                if evaluation_due:
                    self.latest = evaluation = self._evaluate(training, interrupt, observer)
                    if self.best is None or evaluation.mean > self.best:
                        facts = {"return_mean": evaluation.mean, "return_ci95": evaluation.ci95}
                        self._keep(training, folder / BEST, facts)
                        self.best = evaluation.mean
                    goal = self.config.stop_at_return
                    if goal is not None and evaluation.mean >= goal:
                        training.stop(f"the evaluation return {evaluation.mean:g} reached `stop_at_return={goal:g}`")
                if snapshot_due:
                    self._keep(training, snapshot_path(folder, episodes), {})
            finally:
                training.clock.start()
        self.passed = episodes
        return evaluation

    def _evaluate(self, training: "Training", interrupt: Interrupt, observer: Observer) -> Evaluation:
        """Play deterministically from the same initial states as every time."""
        assert self._env is not None
        self._env.load_state(self._begin)
        policy, episodes = team_act(training.team, explore=False), self.config.evaluate_during

        def act(observation: Any) -> Any:
            if interrupt.signal is not None:
                raise Abandoned
            return policy(observation)

        return play(self._env, act, episodes, observer.aside("evaluating: episode", episodes))

    def _keep(self, training: "Training", path: Path, facts: dict[str, Any]) -> None:
        facts |= {"episode": training.episodes, "samples": training.samples, "updates": training.updates}
        write_weights(path, training.team.weights(), facts | {"settings": training.config.settings})
