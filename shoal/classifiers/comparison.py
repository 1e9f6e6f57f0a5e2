"""Several schemes side by side, and float32 of the same seed beside them: which runs there are, in which folders.

runs/mac1/                one scheme: its run folder
  float32/                the baseline, a run folder of its own
runs/mac2/                several schemes
  schemes.json            the settings, and the schemes in their order
  1-hfp8/ 2-bm8/ float32/ a run folder each
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.classifiers.config import FLOAT32, ClassifierConfig, is_float32
from shoal.classifiers.data import load_data
from shoal.classifiers.images import ImageData
from shoal.classifiers.training import ClassifierResult, ClassifierTraining, TrainingDiverged, train_classifier
from shoal.errors import UserError
from shoal.numerics import parse_scheme
from shoal.numerics.formats.notation import split_list
from shoal.numerics.mac.unit import parse_mac
from shoal.runs import disk
from shoal.runs.folder import CONFIG, RESULT, RunFolder, check_free, file_name, new_folder
from shoal.runs.observer import Observer
from shoal.runs.settings import read_settings
from shoal.waiting import said_if_long

SCHEMES = "schemes.json"


@dataclass(frozen=True)
class Comparison:
    """Settings that all runs share, and the schemes, one or several."""

    config: ClassifierConfig
    schemes: tuple[str, ...]

    def configs(self, folder: Path) -> list[ClassifierConfig]:
        """The settings of each run, with its folder; the baseline last."""
        every = []
        for number, scheme in enumerate(self.schemes, 1):
            name = FLOAT32 if scheme == FLOAT32 else f"{number}-{file_name(scheme)[:80].strip('-')}"
            out = folder / name if len(self.schemes) > 1 else folder
            every.append(dataclasses.replace(self.config, scheme=scheme, out=str(out)))
        if self.config.baseline and not any(map(is_float32, self.schemes)):
            own = str(folder / FLOAT32)
            every.append(dataclasses.replace(self.config, scheme=FLOAT32, loss_scale="none", baseline=False, out=own))
        return every


def split_schemes(words: Sequence[str]) -> tuple[str, ...]:
    """The schemes of a command line: several words, or one with commas; none twice."""
    schemes = split_list(words)
    parsed = [parse_scheme(scheme) for scheme in schemes]
    if twice := [scheme for scheme, value in zip(schemes, parsed, strict=True) if parsed.count(value) > 1]:
        raise UserError(f"`schemes` names {twice[0]} twice.")
    return schemes


def read_comparison(folder: Path) -> Comparison:
    """The settings and schemes of a folder that `compare` has begun."""
    path = folder / SCHEMES
    if not path.exists():
        config = read_settings(folder, ClassifierConfig)
        return Comparison(config, (config.scheme,))
    try:
        fields = disk.read_sealed(path)
        config = ClassifierConfig(**fields["config"]).checked()
        return Comparison(config, tuple(fields["schemes"]))
    except (disk.Damaged, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"'{path}' is damaged ({error}); train into another folder.") from None


def compare(
    comparison: Comparison, observer: Observer | None = None, resume: bool = False, data: ImageData | None = None
) -> tuple[Path, list[ClassifierResult]]:
    """Train all schemes and the baseline, or what is left of them; returns the folder and the results so far.

    The results end with the first one that a signal stopped. Of several schemes, one that diverges does not keep the
    others from being trained; a single one raises its `UserError`.
    """
    observer = observer or Observer()
    config = comparison.config.checked()
    for scheme in comparison.schemes:
        dataclasses.replace(config, scheme=scheme).checked()
    if config.out is not None and not resume:
        _check_free(Path(config.out))
    if not resume:  # what is wrong is found before anything is written, and before the first of many trainings
        with said_if_long(observer.note, "Loading the data and building the network."):
            data = load_data(config.data) if data is None else data
            for scheme in comparison.schemes:
                ClassifierTraining(dataclasses.replace(config, scheme=scheme), data)
    single = len(comparison.schemes) == 1
    results: list[ClassifierResult] = []
    with _folder(comparison, resume) as folder:
        for run_config in comparison.configs(folder):
            own = Path(run_config.out or "")
            finished = (own / RESULT).exists()
            begun = finished or (own / CONFIG).exists()
            try:
                results.append(train_classifier(run_config, Observer() if finished else observer, begun, data))
            except TrainingDiverged as problem:
                if single and run_config.scheme == comparison.schemes[0]:
                    raise
                observer.tell(f"{run_config.scheme}: {problem}")
                results.append(problem.result)
            if results[-1].signal is not None:
                break
    return folder, results


def train_units(
    units: Sequence[str], config: ClassifierConfig, observer: Observer | None = None
) -> list[ClassifierResult]:
    """Train the same model through each unit, and in float32; in the folder `config.out`, where finished ones are kept.

    A training that was stopped by a signal ends the list.
    """
    names = [str(parse_mac(unit)) for unit in units]
    if not names:
        raise UserError("A sweep needs at least one MAC unit, such as E5M2:5+Q8.13.")
    schemes = (*dict.fromkeys(names), FLOAT32)
    comparison = Comparison(dataclasses.replace(config, baseline=False).checked(), schemes)
    resume = config.out is not None and (Path(config.out) / SCHEMES).exists()
    if resume:
        before = read_comparison(Path(str(config.out)))
        if before.schemes != schemes or before.config.settings != comparison.config.settings:
            raise UserError(f"'{config.out}' holds another sweep: choose another `out`.")
    return compare(comparison, observer, resume)[1]


@contextlib.contextmanager
def _folder(comparison: Comparison, resume: bool) -> Iterator[Path]:
    """The folder of all runs, locked if it is not a run itself."""
    config, several = comparison.config, len(comparison.schemes) > 1
    out = None if config.out is None else Path(config.out)
    if resume and out is None:
        raise UserError("`resume` needs a run folder: set `out`.")
    if resume and out is not None and (out / SCHEMES).exists():
        with RunFolder(out) as folder:
            yield folder.path
    elif several and not resume:
        name = f"{config.model}-{config.data}-{len(comparison.schemes)}-schemes-seed{config.seed}"
        with new_folder(config.out, name) as folder:
            _check_free(folder.path)
            folder.write(SCHEMES, json.dumps(disk.sealed(dataclasses.asdict(comparison)), indent=2) + "\n")
            try:
                yield folder.path
            except Exception:
                if not list(folder.path.glob(f"*/{CONFIG}")):  # not even one step was possible
                    folder.discard()
                raise
    else:
        if out is None:
            with new_folder(None, f"{config.model}-{config.data}-seed{config.seed}") as folder:
                out = folder.path
        yield out  # a run, which locks its folder


def _check_free(folder: Path) -> None:
    check_free(folder)
    if (folder / SCHEMES).exists() or (folder / FLOAT32 / CONFIG).exists():
        raise UserError(f"'{folder}' already holds a run: resume it, or choose another `out`.")
