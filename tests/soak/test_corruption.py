"""Damaged runs and policies: the bits of the undamaged one or a sentence, never silently other weights."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.soak.harness import Ended, Shoal, check_ended, check_json, digest, returns

FULL = 1_000
SECONDS = 120
ONNX, ZIP = "policy.onnx", "model.zip"
EVALUATE = ["--episodes", "2", "--json"]
NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")


# ---- damage ----------------------------------------------------------------------------------------------------------


def flipped(data: bytes, rng: Random) -> bytes:
    """One bit."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def cut(data: bytes, rng: Random) -> bytes:
    """The end is missing."""
    return data[: rng.choice((0, 1, len(data) - 1, rng.randrange(len(data))))]


def extended(data: bytes, rng: Random) -> bytes:
    """Something follows."""
    return data + rng.choice((b"\0", b"\n", b"}", data, rng.randbytes(rng.randrange(1, 100))))


def overwritten(data: bytes, rng: Random) -> bytes:
    """A part is zeros or noise, as after a crash of the disk."""
    at, length = rng.randrange(len(data)), rng.choice((1, 8, 512))
    length = min(length, len(data) - at)
    return data[:at] + rng.choice((bytes(length), rng.randbytes(length))) + data[at + length :]


def shuffled(data: bytes, rng: Random) -> bytes:
    """Two parts have changed places."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def renumbered(data: bytes, rng: Random) -> bytes:
    """Another number stands in a text."""
    found = list(NUMBER.finditer(data))
    if not found or b"\0" in data:
        return flipped(data, rng)
    at = rng.choice(found)
    number = int(float(at[0])) if abs(float(at[0])) < 1e9 else 7
    other = rng.choice(
        (number + 1, number - 1, number * 10, 2 * number, -number, 0, 0.5, 10**9, 50_000, "true", "null")
    )
    return data[: at.start()] + str(other).encode() + data[at.end() :]


CHANGES: list[Callable[[bytes, Random], bytes]] = [
    flipped,
    flipped,
    cut,
    extended,
    overwritten,
    shuffled,
    renumbered,
    renumbered,
]


def damage(subject: Path, path: Path, rng: Random) -> str:
    """Spoil a file or a checkpoint of the subject; returns what was done."""
    what, name = rng.random(), path.relative_to(subject.parent)
    others = [other for other in sorted(subject.rglob("*")) if other.is_file() == path.is_file() and other != path]
    if path.is_dir() or what < 0.1:
        if rng.random() < 0.4 or not others:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            return f"{name} is deleted"
        if path.is_dir() and rng.random() < 0.6:
            other = path.with_name(
                rng.choice(("00000000", "00000004", "00000011", "00000012", "00000100", ".00000006.old"))
            )
            how = rng.choice((shutil.copytree, shutil.move))
            if not other.exists():
                how(path, other)
            return f"{name} is {'copied' if how is shutil.copytree else 'moved'} to {other.name}"
        other, aside = rng.choice(others), path.with_name("aside")
        if other in path.parents or path in other.parents:
            return "nothing"
        for source, target in ((path, aside), (other, path), (aside, other)):
            source.rename(target)
        return f"{name} and {other.relative_to(subject.parent)} have changed places"
    if what < 0.13:
        path.unlink()
        path.mkdir()
        return f"{name} is a folder"
    if what < 0.16 and others:
        other = rng.choice(others)
        path.write_bytes(other.read_bytes())
        return f"{name} is a copy of {other.relative_to(subject.parent)}"
    change, data = rng.choice(CHANGES), path.read_bytes()
    changed = change(data, rng) if data else b"x"
    path.write_bytes(changed)
    if meaning(changed) == meaning(data):
        return "nothing"
    return f"{name}: {change.__name__}, {len(data)} -> {len(changed)} bytes"


def meaning(data: bytes) -> object:
    """What JSON says, however it is spaced; the bytes of anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


# ---- what is true ----------------------------------------------------------------------------------------------------


class Truth:
    """What the undamaged ones give."""

    def __init__(self, shoal: Shoal, material: Path, folder: Path) -> None:
        for name in ("run", "stopped"):
            shutil.copytree(material / name, folder / name)
        for name in (ONNX, ZIP):
            shutil.copy(material / name, folder)
        self.evaluated = {name: self._evaluated(shoal, folder, name) for name in ("run", "stopped", ONNX)}
        self.exported = {}
        for name, more in (("run", []), (ZIP, ["--env", "CartPole-v1"])):
            assert shoal.run(["export", name, "--out", "new.onnx", *more], folder).code == 0
            self.exported[name] = (folder / "new.onnx").read_bytes()
        older = folder / "older" / "stopped"
        shutil.copytree(folder / "stopped", older)
        shutil.rmtree(sorted((older / "checkpoints").glob("[0-9]*"))[-1])
        self.evaluated["older"] = self._evaluated(shoal, older.parent, "stopped")
        assert shoal.run(["train", "--resume", "stopped", "--quiet"], folder).code == 0
        self.digest, self.returns = digest(folder / "stopped"), returns(folder / "stopped")
        assert self.digest == digest(folder / "run"), "a stopped run does not end like an uninterrupted one"

    @staticmethod
    def _evaluated(shoal: Shoal, folder: Path, name: str) -> dict[str, Any]:
        ended = shoal.run(["evaluate", name, *EVALUATE], folder)
        assert ended.code == 0, ended
        return check_json(ended.out)


# ---- the soak --------------------------------------------------------------------------------------------------------


def told(ended: Ended) -> bool:
    """Whether the person hears that something is not as it was."""
    return any(word in ended.err for word in ("damaged", "missing", "cannot be read", "changed", "lost"))


class Trial:
    """Commands on one damaged subject, each of which must be right or refuse."""

    def __init__(self, shoal: Shoal, truth: Truth, folder: Path) -> None:
        self.shoal, self.truth, self.folder = shoal, truth, folder
        self.refused = self.told = 0

    def run(self, *words: str) -> Ended | None:
        """How the command ended; None if it refused."""
        ended = self.shoal.run(words, self.folder, SECONDS)
        check_ended(ended)
        self.refused += ended.code == 2
        self.told += ended.code == 0 and told(ended)
        return None if ended.code == 2 else ended

    def evaluate(self, name: str) -> None:
        """The same returns; those of an older checkpoint only if that is told."""
        if ended := self.run("evaluate", name, *EVALUATE):
            found, wanted = check_json(ended.out), [self.truth.evaluated[name]]
            if name == "stopped" and told(ended):
                wanted.append(self.truth.evaluated["older"])
            assert found in wanted, f"silently other returns: {found} instead of {wanted}"

    def export(self, name: str, *more: str) -> None:
        """The same file."""
        if self.run("export", name, "--out", "new.onnx", *more):
            same = (self.folder / "new.onnx").read_bytes() == self.truth.exported[name]
            assert same, "silently another policy is exported"

    def resume(self, name: str, whole: bool) -> None:
        """The same weights at the end; of a finished run whatever is wrong with its checkpoint is told."""
        if ended := self.run("train", "--resume", name, "--quiet"):
            assert name != "run" or whole or told(ended), f"nothing is said about the damage: {ended.err!r}"
            if name == "stopped":
                run = self.folder / name
                assert digest(run) == self.truth.digest, f"silently other weights: {ended.err!r}"
                assert returns(run) == self.truth.returns, "other returns"


@pytest.mark.slow
def test_random_corruptions(soak, material, shoal_process, tmp_path):
    truth_folder = tmp_path / "truth"
    truth_folder.mkdir()
    truth = Truth(shoal_process, material, truth_folder)
    places = [
        (name, path.relative_to(material))
        for name in ("run", "stopped")
        for path in sorted((material / name).rglob("*"))
    ]
    places += [(ONNX, Path(ONNX))] * 12 + [(ZIP, Path(ZIP))] * 6
    for case in soak.cases(FULL):
        with case:
            name, path = places[case.number % len(places)]
            folder = tmp_path / str(case.number)
            folder.mkdir()
            source = material / name
            shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
            case.story = damage(folder / name, folder / path, case.rng)
            trial = Trial(shoal_process, truth, folder)
            if name == ZIP:
                trial.export(ZIP, "--env", "CartPole-v1")
            elif name == ONNX:
                trial.evaluate(ONNX)
            else:
                trial.evaluate(name)
                if name == "run":
                    trial.export("run")
                checkpoint = path.parent.parent.name == "checkpoints" and case.story != "nothing"
                trial.resume(name, not checkpoint)
            case.count("refused" if trial.refused else "told, same bits" if trial.told else "same bits")
        shutil.rmtree(folder, ignore_errors=True)
