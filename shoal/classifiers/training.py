"""The training of a classifier in a scheme, in a run folder: resumed anywhere with bit-identical results."""

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.flop_counter import FlopCounterMode

from shoal.classifiers.config import DECAYS, ClassifierConfig, is_float32
from shoal.classifiers.data import load_data
from shoal.classifiers.images import ImageData, TrainingBatches, in_order
from shoal.classifiers.models import make_model
from shoal.errors import Diverged, UserError, counted
from shoal.networks.stacked import to_arrays, to_tensors
from shoal.numerics import LowPrecision, low_precision
from shoal.numerics.schemes.training import LayerCounts
from shoal.runs import lifecycle
from shoal.runs.checkpoint import Arrays, Checkpoint
from shoal.runs.folder import RunFolder, check_free
from shoal.runs.interrupt import Interrupt
from shoal.runs.metrics import LogMark, MetricsLog
from shoal.runs.observer import Observer
from shoal.runs.threads import PRODUCTS_PER_THREAD, set_torch_threads
from shoal.seeding import stream_seed
from shoal.system.processors import check_threads, usable_processors

EVALUATED_TOGETHER = 250  # test images per forward pass
EMULATED = 20  # an emulated multiplication counts as this many where the number of threads is chosen
PROGRESS = ("measured", "best", "epoch_loss", "line_loss", "line_steps", "recent_loss")
"""What a training has measured so far, as its checkpoints name it."""


@dataclass(frozen=True)
class ClassifierResult:
    """The result of a classifier's training; accuracies are shares of the test images."""

    run: str
    finished: bool
    scheme: str
    epochs: int
    """Finished epochs."""
    steps: int
    accuracy: float | None
    """After the last finished epoch; with averaged weights where the scheme has them."""
    best_accuracy: float | None
    test_loss: float | None
    train_loss: float | None
    """Mean over the last finished epoch."""
    seconds: float
    figures: dict[str, float]
    """Loss scale, skipped steps and counts of the emulated units, as in the last line of metrics.jsonl."""
    layers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Counts of what saturated, overflowed and underflowed, by layer and role."""
    coverage: str = ""
    """Which operations the scheme reached, as a table."""
    signal: int | None = None
    """The signal that stopped an unfinished training."""
    diverged: str = ""
    """How the training diverged, in a sentence; empty if it did not."""

    @property
    def counters(self) -> dict[str, int]:
        """How much was done, by the names that a checkpoint has for it."""
        return {"steps": self.steps}

    def share(self, event: str) -> float | None:
        """Events (saturated, overflowed or underflowed) per multiply-accumulate; None where none was emulated."""
        macs = self.figures.get("mac/macs")
        return self.figures.get(f"mac/{event}", 0.0) / macs if macs else None


def train_classifier(
    config: ClassifierConfig, observer: Observer | None = None, resume: bool = False, data: ImageData | None = None
) -> ClassifierResult:
    """Train a classifier in a run folder; with `resume`, continue the run in `config.out` from its newest checkpoint.

    A resumed run takes its settings from its folder; settings of `config` that are not defaults must be the same.
    A finished run is returned unchanged. A training that diverges raises `TrainingDiverged`, a `UserError`; its last
    checkpoint stays. `data`: the images, if they have already been read or are the caller's own.
    """
    observer = observer or Observer()

    def build(config: ClassifierConfig) -> "ClassifierTraining":
        return ClassifierTraining(config, data, observer)

    if resume:
        asked = config.asked()
        with lifecycle.reopened(ClassifierConfig, config.out, asked) as (folder, stored):
            return lifecycle.resume(folder, stored, asked, ClassifierResult, build, observer)
    config = config.checked()
    if config.out is not None:
        check_free(config.out)
    return lifecycle.begin(config, f"{config.model}-{config.data}-seed{config.seed}", build, observer)


class TrainingDiverged(Diverged):
    """A training has diverged: how, where and which checkpoint is left, in one sentence; and its results so far."""

    def __init__(self, sentence: str, result: ClassifierResult) -> None:
        super().__init__(sentence)
        self.result = result


class ClassifierTraining:
    """A training in memory: model, optimizer, scheme and data, and how far it is."""

    counter = "step"

    def __init__(
        self, config: ClassifierConfig, data: ImageData | None = None, observer: Observer | None = None
    ) -> None:
        self.config, self._observer = config, observer or Observer()
        data = load_data(config.data) if data is None else data.checked("The given data")
        self.data = data.first(config.train_images, config.test_images)
        if config.batch > len(self.data.train):
            raise UserError(
                f"`batch` is {config.batch:,}, but there are only {counted(len(self.data.train), 'training image')}."
            )
        self.batches = TrainingBatches(self.data, config.batch, config.seed, config.augment)
        self.total = config.epochs * self.batches.per_epoch
        shape = (self.data.channels, self.data.side)
        self.model = make_model(config.model, *shape, self.data.classes, config.seed, config.dropout)
        self.threads = use_threads(config, self.model, self.data)
        self.optimizer = make_optimizer(config, self.model)
        self.precision = low_precision(
            self.model, self.optimizer, config.scheme, loss_scale=config.loss_scale, seed=config.seed, steps=self.total
        )
        self.done = self.saved = 0  # steps so far, and at the last checkpoint
        self.seconds = 0.0  # before this process took over
        self._since = time.perf_counter()
        self.epoch_loss = self.line_loss = 0.0  # sums over the steps of this epoch, and since the last line
        self.line_steps = 0
        self.recent_loss = math.nan
        self.measured: dict[str, float] = {}  # of the last finished epoch
        self.best: float | None = None
        self.log_mark = LogMark()
        self._random = torch.Generator().manual_seed(stream_seed(config.seed, "dropout")).get_state()

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return self.done // self.batches.per_epoch

    @property
    def started(self) -> bool:
        """Whether even one step was possible."""
        return self.done > 0

    @property
    def complete(self) -> bool:
        return self.done == self.total

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self, folder: RunFolder, log: MetricsLog, interrupt: Interrupt) -> None:
        """Train until all steps are done or a signal arrives; either way the last state is saved."""
        self.log_mark, self._since = log.mark, time.perf_counter()
        self._observer.begin(self, folder.path)
        with torch.random.fork_rng(devices=[]):  # torch's global generator, which only dropout uses
            torch.set_rng_state(self._random)
            try:
                self._run(folder, log, interrupt)
            except Diverged as problem:
                last_good = f"the last good checkpoint is that of step {self.saved:,} in '{folder.path}'"
                sentence = (
                    f"{str(problem).rstrip('.')}, at step {self.done + 1:,} of {self.total:,} (epoch {self.epoch + 1}):"
                    f" training has diverged; {last_good if self.saved else 'there is no checkpoint yet'}."
                )
                result = dataclasses.replace(self.result(folder.path), diverged=sentence)
                raise TrainingDiverged(sentence, result) from None
            self.save(folder, log)

    def _run(self, folder: RunFolder, log: MetricsLog, interrupt: Interrupt) -> None:
        every = self.config.checkpoint_every
        while not self.complete and interrupt.signal is None:
            self.take_step()
            if self.done % self.batches.per_epoch == 0:
                self.measured = self.evaluate() | {"train_loss": self.epoch_loss / self.batches.per_epoch}
                self.best = max(self.measured["accuracy"], self.best or 0.0)
                self.epoch_loss = 0.0
                self.write_log(log, self.measured)
            elif self.done % self.config.log_every == 0:
                self.write_log(log, {})
            self._observer.advance(self)
            if every and self.done % every == 0 and not self.complete:
                self.save(folder, log)

    def close(self) -> None:
        """Nothing has to be closed."""

    def take_step(self) -> None:
        """One update on one mini-batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.first_rate * rate(self.config.schedule, self.done / self.total)
        images, labels = self.batches[self.done]
        self.model.train()
        with self.precision:
            loss = F.cross_entropy(self.model(images), labels)
        self.precision.step(loss)
        self.done += 1
        self.recent_loss = loss.item()
        self.epoch_loss += self.recent_loss
        self.line_loss += self.recent_loss
        self.line_steps += 1

    def evaluate(self) -> dict[str, float]:
        """Accuracy and mean loss on the test images, in the scheme; it leaves no trace in the training.

        Averaged weights, where the scheme has them, are used with batch-norm statistics of their own.
        """
        right, loss = 0, 0.0
        with self.precision.evaluating(), self._fitting_norms():
            self.model.eval()
            for images, labels in in_order(self.data, self.data.test, EVALUATED_TOGETHER):
                logits: Tensor = self.model(images)
                right += int((logits.argmax(1) == labels).sum())
                loss += F.cross_entropy(logits, labels, reduction="sum").item()
        count = len(self.data.test)
        return {"accuracy": right / count, "test_loss": loss / count}

    @contextmanager
    def _fitting_norms(self) -> Iterator[None]:
        """In it, batch norms have the statistics that the training images have with the averaged weights."""
        buffers = dict(self.model.named_buffers())
        if not (self.precision.averages and buffers):
            yield
            return
        before = {name: value.clone() for name, value in buffers.items()}
        images = (images for images, _ in in_order(self.data, self.data.train, EVALUATED_TOGETHER))
        try:
            update_bn(images, self.model)
            yield
        finally:
            for name, value in buffers.items():
                value.copy_(before[name])

    # ---- what is written -------------------------------------------------------------------------------------------

    def write_log(self, log: MetricsLog, measured: dict[str, float]) -> None:
        """One line: the mean loss since the last one, loss scale and counts; accuracy at the end of an epoch."""
        passed = self.total_seconds()
        line: dict[str, Any] = {"step": self.done, "epoch": self.done / self.batches.per_epoch}
        line |= {"loss": self.line_loss / self.line_steps, "learning_rate": self.optimizer.param_groups[0]["lr"]}
        log.add(line | measured | self.precision.metrics() | {"seconds": passed})
        self.log_mark = log.mark
        self.line_loss, self.line_steps = 0.0, 0

    def total_seconds(self) -> float:
        """Seconds of training so far, in all processes that worked on it."""
        return self.seconds + time.perf_counter() - self._since

    def finished(self, path: Path) -> ClassifierResult:
        """The results; they were measured after the last epoch."""
        return self.result(path)

    def result(self, path: Path, signal: int | None = None) -> ClassifierResult:
        return ClassifierResult(
            run=str(path), finished=self.complete, scheme=self.config.scheme, epochs=self.epoch, steps=self.done,
            accuracy=self.measured.get("accuracy"), best_accuracy=self.best, test_loss=self.measured.get("test_loss"),
            train_loss=self.measured.get("train_loss"), seconds=self.total_seconds(), figures=self.precision.metrics(),
            layers=layer_counts(self.model, self.precision), coverage=str(self.precision.coverage()), signal=signal,
        )  # fmt: skip

    def save(self, folder: RunFolder, log: MetricsLog) -> None:
        """Save a checkpoint, named by its step."""
        log.sync()  # the checkpoint records the log's length
        parts: dict[str, Arrays] = {
            "weights": to_arrays(self.model.state_dict()),
            "optimizer": to_arrays(optimizer_state(self.optimizer)),
            "precision": to_arrays(self.precision.state()),
            "random": to_arrays({"torch": torch.get_rng_state()}),
        }
        meta = {name: getattr(self, name) for name in PROGRESS} | {
            "log": self.log_mark,
            "seconds": self.total_seconds(),
            "threads": self.threads,
            "data": self.data.sha256,
            "settings": self.config.settings,
        }
        folder.checkpoints.save(self.done, parts, meta)
        self.saved = self.done

    def load(self, checkpoint: Checkpoint, folder: RunFolder) -> None:
        """Continue from a checkpoint; the data must be the same."""
        meta, parts = checkpoint.meta, checkpoint.parts
        if meta["data"] != self.data.sha256:
            raise UserError(f"`data={self.config.data}` has changed since the run in '{folder.path}' was started.")
        self.model.load_state_dict(to_tensors(parts["weights"]))
        load_optimizer(self.optimizer, to_tensors(parts["optimizer"]))
        self.precision.load_state(to_tensors(parts["precision"]))
        self._random = to_tensors(parts["random"])["torch"]
        self.done = self.saved = checkpoint.episode
        for name in (*PROGRESS, "seconds"):
            setattr(self, name, meta[name])
        self.log_mark = LogMark(*meta["log"])


def rate(schedule: str, done: float) -> float:
    """The learning rate after this share of the training, as a multiple of the first one."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if schedule == "step":
        return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01
    return 1.0


def make_optimizer(config: ClassifierConfig, model: nn.Module) -> torch.optim.Optimizer:
    rate, decay = config.first_rate, config.weight_decay
    decay = DECAYS[config.optimizer] if decay is None else decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), rate, config.momentum, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(model.parameters(), rate, weight_decay=decay)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state, all of it tensors, as `parameter.key`."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{key}": value for number, entry in state.items() for key, value in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_state`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def layer_counts(model: nn.Module, precision: LowPrecision) -> list[dict[str, Any]]:
    """Counts by layer and role as plain values, in the order of the model; what is no parameter's comes last."""
    parameters = [name for name, _ in model.named_parameters()]

    def place(counts: LayerCounts) -> tuple[int, str, str]:
        layer = counts.layer
        matches = (number for number, name in enumerate(parameters) if layer and f"{name}.".startswith(f"{layer}."))
        return next(matches, len(parameters)), layer, counts.role

    return [counts._asdict() for counts in sorted(precision.by_layer(), key=place)]


def use_threads(config: ClassifierConfig, model: nn.Module, data: ImageData) -> int:
    """Set and return torch's threads, which emulated products use, too: as configured, or by the size of a step."""
    count = config.threads
    if count is None:
        was_training = model.training
        model.eval()  # leaves batch-norm statistics alone
        with FlopCounterMode(display=False) as counter:  # with gradients: attention's fast path would not be counted
            model(torch.zeros(1, data.channels, data.side, data.side))
        model.train(was_training)
        products = 3 * config.batch * int(counter.get_total_flops()) // 2  # backward takes about twice as many
        products *= 1 if is_float32(config.scheme) else EMULATED
        count = max(1, min(usable_processors(), products // PRODUCTS_PER_THREAD))
    check_threads(count)
    set_torch_threads(count)
    return count
