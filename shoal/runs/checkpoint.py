"""A run's state on disk: written atomically, and verified by checksums when it is read.

    checkpoints/
      00001600/                    one checkpoint, named by its episode
        weights.safetensors        one file per part; `replay` is the ring's own state without its transitions
        meta.json                  the caller's metadata, and the segments that this checkpoint needs
        manifest.json              size and SHA-256 of every other file in the folder
      replay/
        000000000000-000000025000.safetensors      a segment: transitions [first, last) of every copy in the ring
      .00002400.new/               being written
      .00001600.old/               being replaced by a later checkpoint of the same episode

A checkpoint is written under its `.new` name, synced and renamed; only then is anything older deleted. A segment
belongs to a checkpoint only through the checksum in that checkpoint's `meta.json`; it is never changed while one
names it, and later checkpoints share it. So a writer may be killed at any instant: the last complete
checkpoint remains, besides files that no checkpoint names and that the next save removes.
Where copies advance at their own pace, first and last differ between copies: the name of such a segment has their sums
over all copies and the beginning of its checksum, and `meta.json` has the numbers. So has one that holds, besides its
transitions, what was seen before them (`Ring.segment`): that depends on when it was written.
Files and folders with other names are left alone.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UserError
from shoal.replay.samplers import History
from shoal.replay.saved import one_or_each
from shoal.runs import disk

Arrays = dict[str, NDArray[Any]]

FORMAT = 2  # 1 did not include the settings
SEGMENT_BYTES = 64 * 2**20
"""A longer range of transitions is split, which bounds the memory that saving and loading need."""

_META, _MANIFEST, _REPLAY, _SUFFIX = "meta.json", "manifest.json", "replay", ".safetensors"
_EPISODE = "(?P<episode>(?:[1-9][0-9]*)?[0-9]{8})"
_FINAL, _OLD, _NEW = re.compile(_EPISODE), re.compile(rf"\.{_EPISODE}\.old"), re.compile(rf"\.{_EPISODE}\.new")
_SEGMENT = re.compile(r"[0-9]{12,}-[0-9]{12,}(-[0-9a-f]{16})?\.safetensors")


class RingStore(History, Protocol):
    """The interface of the replay ring for checkpoints; each copy counts its own transitions."""

    @property
    def row_bytes(self) -> int:
        """Approximate bytes per transition of one copy."""

    @property
    def copies(self) -> int:
        """E."""

    def segment(self, first: ArrayLike, last: ArrayLike) -> Arrays:
        """The transitions [first, last) as arrays; both are one number for all copies, or one per copy."""

    def load_segment(self, first: ArrayLike, last: ArrayLike, arrays: Arrays) -> None:
        """Restore what `segment(first, last)` returned; it may include transitions before `oldest`."""

    def state(self) -> Arrays:
        """The ring's state without its transitions."""

    def load_state(self, state: Arrays) -> None:
        """Restore what `state` returned; the segments follow, oldest first."""


class Segment(NamedTuple):
    """A file of transitions [first, last), as a checkpoint names it."""

    name: str
    first: int | list[int]  # one number for all copies, or one per copy
    last: int | list[int]
    size: int
    sha256: str


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A complete, verified checkpoint."""

    path: Path
    episode: int
    parts: dict[str, Arrays]
    meta: dict[str, Any]
    segments: tuple[Segment, ...]

    def load_ring(self, ring: RingStore) -> int:
        """Restore the ring's state, then its transitions from the oldest to the newest; returns how many are missing.

        Those whose next observation an earlier version of Shoal did not save are left out.
        """
        ring.load_state(self.parts["replay"])
        oldest = np.sum(ring.oldest)
        with disk.sentence(f"The replay of checkpoint {self.path} cannot be read"):
            for segment, data in self.read_segments():
                ring.load_segment(segment.first, segment.last, _unpack(data))
        return int(np.sum(ring.oldest) - oldest)

    def read_segments(self) -> Iterator[tuple[Segment, bytes]]:
        """Each segment with the verified bytes of its file, one at a time."""
        for segment in self.segments:
            yield segment, disk.read(self.path.parent / _REPLAY / segment.name, segment.size, segment.sha256)


class Checkpoints:
    """The `checkpoints/` folder of one run, which has one writer at a time.

    A resumed run calls `load` before the first `save`: the next checkpoint builds on what it loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._kept: list[Checkpoint] = []  # at most two, newest last; without their parts
        self._whole_ring = False  # the next checkpoint shares no segments

    def load(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest intact checkpoint, or None if there is none at all; `warn` is called for damaged ones."""
        with disk.sentence(f"The checkpoints in {self.folder} cannot be read"):
            self._kept = []
            self._delete_unfinished()
            newest = _newest_whole(self.folder, None, warn)
            if newest is None:
                return None
            if _OLD.fullmatch(newest.path.name):  # the writer was killed before its successor was in place
                final = self.folder / f"{newest.episode:08d}"
                _delete_folder(final)
                os.rename(newest.path, final)
                newest = replace(newest, path=final)
            for place in _places(self.folder):
                if place.episode < newest.episode and not self._kept:
                    with contextlib.suppress(disk.Damaged):
                        self._kept = [_read_folder(place, ())]
        self._kept.append(replace(newest, parts={}))
        return newest

    def save(self, episode: int, parts: dict[str, Arrays], meta: dict[str, Any], ring: RingStore | None = None) -> Path:
        """Write a checkpoint, then delete what the last two do not need; returns its folder.

        `meta` consists of JSON values (integers of any size; NaN and infinities survive); its keys are strings.
        With a ring, `ring.state()` becomes the part `replay`, and the transitions added since the previous checkpoint
        are written as new segments. If anything fails, the previous state on disk is still intact.
        """
        if ring is not None:
            parts = parts | {_REPLAY: ring.state()}
        if not all(part.isidentifier() for part in parts):
            raise ValueError(f"parts are files, so their names must be plain: {list(parts)}")
        final = self.folder / f"{episode:08d}"
        with disk.sentence(f"Checkpoint {final} could not be written"):
            if not self._kept and _places(self.folder):
                raise UserError(
                    f"{self.folder} holds checkpoints of an earlier run; resume that run or choose another folder."
                )
            self._write(Checkpoint(final, episode, parts, meta, ()), ring)
            disk.sync(self.folder)
            self._prune()
        return final

    def keep_newest(self) -> None:
        """The run is finished: delete all but the newest checkpoint, and segments that only older ones needed."""
        self._kept = self._kept[-1:]
        with disk.sentence(f"The checkpoints in {self.folder} cannot be cleaned up"):
            self._prune()
            if not any(kept.segments for kept in self._kept):
                with contextlib.suppress(OSError):
                    (self.folder / _REPLAY).rmdir()

    def write_whole_ring(self) -> None:
        """Let the next checkpoint write the whole ring, not what was added since the segments it was loaded from."""
        self._whole_ring = True

    def _write(self, checkpoint: Checkpoint, ring: RingStore | None) -> None:
        """Write the new checkpoint up to the rename that commits it, or undo everything."""
        final = checkpoint.path
        new, old = (final.with_name(f".{final.name}.{state}") for state in ("new", "old"))
        fresh: list[Path] = []  # segments written for this checkpoint
        try:
            disk.make_folder(self.folder)
            _delete_folder(new)
            new.mkdir(exist_ok=True)
            if ring is not None:
                checkpoint = replace(checkpoint, segments=self._store(ring, fresh))
            files = {}
            for name, data in _files(checkpoint):
                disk.write(new / name, data)
                files[name] = {"size": len(data), "sha256": disk.sha256(data)}
                del data  # before the next file's bytes are made: those of weights and moments are large
            disk.write(new / _MANIFEST, json.dumps(disk.sealed({"format": FORMAT, "files": files})).encode())
            disk.sync(new)
            if final.is_dir() and _looks_ours(final):
                _delete_folder(old)
                os.rename(final, old)
            os.rename(new, final)
            self._whole_ring = False
            self._kept = [kept for kept in self._kept if kept.episode < checkpoint.episode][-1:]
            self._kept.append(replace(checkpoint, parts={}))
        except BaseException:
            if new.exists():  # else it was renamed, which committed it
                with contextlib.suppress(OSError):
                    if old.exists() and not final.exists():
                        os.rename(old, final)
                for path in fresh:
                    disk.delete(path)
                _delete_folder(new)
            raise

    def _store(self, ring: RingStore, fresh: list[Path]) -> tuple[Segment, ...]:
        """The segments that cover the ring; the paths of those that had to be written are added to `fresh`.

        If a segment of the previous checkpoint is missing, it and all later ones are rewritten from the ring. All are
        rewritten, too, once more than half of what they hold is no longer live: a slow copy would otherwise keep on
        disk what faster copies overwrote long ago.
        """
        folder = self.folder / _REPLAY
        disk.make_folder(folder)
        kept = () if self._whole_ring else reversed(self._kept)
        before = next((checkpoint.segments for checkpoint in kept if checkpoint.segments), ())
        oldest, added = np.asarray(ring.oldest), np.asarray(ring.added)
        if before and np.any(before[-1].last > added):
            raise ValueError(f"the ring ends at {added}, before the last segment that it continues: {before[-1]}")
        live = (segment for segment in before if np.any(segment.last > np.maximum(segment.first, oldest)))
        segments = list(takewhile(lambda segment: disk.file_size(folder / segment.name) == segment.size, live))
        covered = sum(np.mean(np.subtract(segment.last, segment.first)) for segment in segments)  # per copy
        if covered > 2 * np.mean(added - oldest):
            segments = []
        start = np.maximum(segments[-1].last, oldest) if segments else oldest
        length = max(1, SEGMENT_BYTES // (ring.row_bytes * ring.copies))
        while np.any(start < added):
            end = np.minimum(start + length, added)
            first, last = one_or_each(start), one_or_each(end)
            arrays = ring.segment(first, last)
            data = _pack(arrays)
            sha256 = disk.sha256(data)
            name = f"{start.sum():012d}-{end.sum():012d}-{sha256[:16]}"
            if isinstance(first, int) and isinstance(last, int) and "before" not in arrays:
                name = f"{first:012d}-{last:012d}"
            segment = Segment(f"{name}{_SUFFIX}", first, last, len(data), sha256)
            path = folder / segment.name
            if segment not in before or disk.file_size(path) != segment.size:
                fresh.append(path)
                disk.delete(path)  # from a killed writer or a damaged checkpoint
                disk.write(path, data)
            segments.append(segment)
            start = end
        if fresh:
            disk.sync(folder)
        return tuple(segments)

    def _delete_unfinished(self) -> None:
        """Delete the unfinished files of killed writers."""
        for name in filter(_NEW.fullmatch, disk.names(self.folder)):
            _delete_folder(self.folder / name)

    def _prune(self) -> None:
        """Delete checkpoints that are not kept, and segments that no kept one names."""
        self._delete_unfinished()
        for place in _places(self.folder):
            if place.path not in [kept.path for kept in self._kept]:
                _delete_folder(place.path)
        named = {segment.name for kept in self._kept for segment in kept.segments}
        for name in filter(_SEGMENT.fullmatch, disk.names(self.folder / _REPLAY)):
            if name not in named:
                disk.delete(self.folder / _REPLAY / name)


def newest(folder: Path, parts: tuple[str, ...] = (), warn: Callable[[str], None] | None = None) -> Checkpoint | None:
    """The newest checkpoint in which these parts are intact, with only these parts, or None if there is none at all.

    Nothing else is read and nothing on disk is modified: safe while another process trains and saves.
    """
    with disk.sentence(f"The checkpoints in {folder} cannot be read"):
        return _newest_whole(Path(folder), parts, warn or (lambda text: None))


def newest_segment(folder: Path, warn: Callable[[str], None] | None = None) -> Arrays | None:
    """The newest transitions of the newest intact checkpoint, or None if it has no segments of the ring.

    Nothing on disk is touched.
    """
    checkpoint = newest(folder, (), warn)
    if checkpoint is None or not checkpoint.segments:
        return None
    with disk.sentence(f"The checkpoints in {folder} cannot be read"):
        *_, (_, data) = replace(checkpoint, segments=checkpoint.segments[-1:]).read_segments()
        return _unpack(data)


class _Place(NamedTuple):
    """A folder that looks like a checkpoint. The inode distinguishes it from another one of the same name."""

    episode: int
    path: Path
    inode: int


def _places(folder: Path) -> list[_Place]:
    """All checkpoint folders, the newest first; one that is being replaced comes after its successor."""
    places = []
    for name in disk.names(folder):
        path = folder / name
        with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
            match = _FINAL.fullmatch(name) or _OLD.fullmatch(name)
            if match and path.is_dir() and not path.is_symlink() and _looks_ours(path):
                places.append(_Place(int(match["episode"]), path, path.stat().st_ino))
    return sorted(places, key=lambda place: (place.episode, place.path.name), reverse=True)  # "." sorts before digits


def _newest_whole(folder: Path, parts: tuple[str, ...] | None, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint in which these parts are intact; None: all parts, and the segments of the ring."""
    places = _places(folder)
    damage: list[str] = []
    for place in places:
        try:
            checkpoint = _read_folder(place, parts)
            for _ in checkpoint.read_segments() if parts is None else ():  # verifies them
                pass
        except disk.Damaged as error:
            if _places(folder) != places:  # the run deleted what was being read: look again
                return _newest_whole(folder, parts, warn)
            damage.append(f"{place.path} is damaged ({error})")
        else:
            for sentence in damage:
                warn(f"Checkpoint {sentence}; the previous one, {checkpoint.path.name}, is used.")
            return checkpoint
    if damage:
        raise UserError(
            f"No intact checkpoint is left: {', '.join(damage)}; restore a copy, or remove {folder} to start over."
        )
    return None


def _read_folder(place: _Place, parts: tuple[str, ...] | None) -> Checkpoint:
    """Read a checkpoint with these parts; None: with all."""
    try:
        manifest = disk.unsealed(json.loads(disk.read(place.path / _MANIFEST)))
    except (ValueError, RecursionError):
        raise disk.Damaged(f"{_MANIFEST} has a wrong checksum") from None
    if manifest["format"] != FORMAT:
        raise UserError(
            f"{place.path} has format {manifest['format']}, but this version of Shoal reads format {FORMAT}; train the "
            "run again, or use the version that it was trained with."
        )
    files = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    facts = json.loads(disk.read(place.path / _META, *files.pop(_META)))
    if facts["episode"] != place.episode:
        raise disk.Damaged(f"it belongs to episode {facts['episode']}")
    arrays = {
        name.removesuffix(_SUFFIX): _unpack(disk.read(place.path / name, *expected))
        for name, expected in files.items()
        if parts is None or name.removesuffix(_SUFFIX) in parts
    }
    segments = tuple(Segment(**entry) for entry in facts["segments"])
    return Checkpoint(place.path, place.episode, arrays, facts["meta"], segments)


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each file of a checkpoint except the manifest, one at a time."""
    for part, arrays in checkpoint.parts.items():
        yield f"{part}{_SUFFIX}", _pack(arrays)
    segments = [segment._asdict() for segment in checkpoint.segments]
    meta = {"episode": checkpoint.episode, "meta": checkpoint.meta, "segments": segments}
    yield _META, json.dumps(meta).encode()


def _pack(arrays: Arrays) -> bytes:
    """Arrays as the bytes of a safetensors file, with their types and shapes (0-d too)."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc" or name == "__metadata__":
            raise TypeError(f"array '{name}' of type {array.dtype} cannot be stored in a checkpoint")
    return safetensors.numpy.save(arrays)


def _unpack(data: bytes) -> Arrays:
    """The arrays of a safetensors file, writable."""
    return {name: np.require(array, requirements="W") for name, array in safetensors.numpy.load(data).items()}


def _is_ours(name: str) -> bool:
    return name in (_META, _MANIFEST) or name.endswith(_SUFFIX)


def _looks_ours(folder: Path) -> bool:
    """Whether a folder is a checkpoint or the remains of one: eight digits may also be a date."""
    names = os.listdir(folder)
    return not names or any(map(_is_ours, names))


def _delete_folder(path: Path) -> None:
    """Delete a checkpoint's files, and its folder unless it contains something else."""
    with contextlib.suppress(OSError):
        for name in filter(_is_ours, disk.names(path)):
            disk.delete(path / name)
        os.rmdir(path)
