"""A run's state on disk: there whole or not at all, and checked before it is believed.

    checkpoints/
      00001600/                    one checkpoint, named by its episode
        weights.safetensors        one file a part; `replay` is the ring's own state without its transitions
        meta.json                  the caller's facts, and the segments that this checkpoint needs
        manifest.json              size and SHA-256 of every other file of the folder
      replay/
        000000000000-000000025000.safetensors      a segment: transitions [first, last) of every copy in the ring
      .00002400.new/               being written
      .00001600.old/               being replaced by a later checkpoint of the same episode

A checkpoint is written under its `.new` name, synced and renamed; only then is anything older deleted. A segment
belongs to a checkpoint only through the checksum in that checkpoint's `meta.json`; it is never changed while one
names it, and later checkpoints share it. So a writer may die at any instant: what it leaves is the last whole
checkpoint, besides things that no checkpoint names and that the next save removes.
Where copies go at their own pace, first and last differ from copy to copy: the name of such a segment has their sums
over all copies and the beginning of its checksum, and `meta.json` has the numbers.
Files and folders with other names than these are not ours and are left alone.
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
from shoal.replay.ring import one_or_each
from shoal.training import disk

Arrays = dict[str, NDArray[Any]]

FORMAT = 2  # 1 did not hold the settings
SEGMENT_BYTES = 64 * 2**20
"""A longer range of transitions is split: saving and loading hold no more than this, and a copy or two, in memory."""

_META, _MANIFEST, _REPLAY, _SUFFIX = "meta.json", "manifest.json", "replay", ".safetensors"
_EPISODE = "(?P<episode>(?:[1-9][0-9]*)?[0-9]{8})"
_FINAL, _OLD, _NEW = re.compile(_EPISODE), re.compile(rf"\.{_EPISODE}\.old"), re.compile(rf"\.{_EPISODE}\.new")
_SEGMENT = re.compile(r"[0-9]{12,}-[0-9]{12,}(-[0-9a-f]{16})?\.safetensors")


class RingStore(Protocol):
    """What a checkpoint asks of the replay ring, whose copies count their transitions each for itself."""

    @property
    def added(self) -> NDArray[np.int64]:
        """(E,) how many transitions were ever added to each copy."""
        ...

    @property
    def oldest(self) -> NDArray[np.int64]:
        """(E,) the number of the oldest transition of each copy that is still there."""
        ...

    @property
    def row_bytes(self) -> int:
        """About how many bytes a transition of one copy takes."""
        ...

    @property
    def copies(self) -> int:
        """E."""
        ...

    def segment(self, first: ArrayLike, last: ArrayLike) -> Arrays:
        """The transitions [first, last) as arrays; both are one number for all copies, or one per copy."""
        ...

    def load_segment(self, first: ArrayLike, last: ArrayLike, arrays: Arrays) -> None:
        """Put back what `segment(first, last)` gave; numbers before `oldest` may be among them."""
        ...

    def state(self) -> Arrays:
        """All of the ring but its transitions."""
        ...

    def load_state(self, state: Arrays) -> None:
        """Put back what `state` gave; the segments follow, oldest first."""
        ...


class Segment(NamedTuple):
    """A file of transitions [first, last), as a checkpoint names it."""

    name: str
    first: int | list[int]
    """Of all copies, or of each."""
    last: int | list[int]
    size: int
    sha256: str


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint that was found whole."""

    path: Path
    episode: int
    parts: dict[str, Arrays]
    meta: dict[str, Any]
    segments: tuple[Segment, ...]

    def load_ring(self, ring: RingStore) -> None:
        """Give the ring back its state, then its transitions from the oldest to the newest."""
        ring.load_state(self.parts["replay"])
        with disk.sentence(f"The replay of checkpoint {self.path} cannot be read"):
            for segment, data in self.read_segments():
                ring.load_segment(segment.first, segment.last, _unpack(data))

    def read_segments(self) -> Iterator[tuple[Segment, bytes]]:
        """Each segment with the bytes of its file, checked, one at a time."""
        for segment in self.segments:
            yield segment, disk.read(self.path.parent / _REPLAY / segment.name, segment.size, segment.sha256)


class Checkpoints:
    """The `checkpoints/` folder of one run, which has one writer at a time.

    A run that goes on calls `load` before the first `save`: what it loaded is what the next checkpoint builds on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._kept: list[Checkpoint] = []  # at most two, the newest last; without their parts

    def load(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint, or None if there is none at all; `warn` hears of damaged ones passed over."""
        with disk.sentence(f"The checkpoints in {self.folder} cannot be read"):
            self._kept = []
            self._sweep()
            newest = _newest_whole(self.folder, _read_all, warn)
            if newest is None:
                return None
            if _OLD.fullmatch(newest.path.name):  # the writer was killed before its successor took the place
                final = self.folder / f"{newest.episode:08d}"
                _delete_folder(final)
                os.rename(newest.path, final)
                newest = replace(newest, path=final)
            for place in _places(self.folder):
                if place.episode < newest.episode and not self._kept:
                    with contextlib.suppress(disk.Damaged):
                        self._kept = [_read_folder(place, parts=())]
        self._kept.append(replace(newest, parts={}))
        return newest

    def save(self, episode: int, parts: dict[str, Arrays], meta: dict[str, Any], ring: RingStore | None = None) -> Path:
        """Write a checkpoint, then delete what the last two do not need; returns its folder.

        `meta` is of JSON's kinds (integers of any size; NaN and infinities come back as such); its keys are strings.
        With a ring, `ring.state()` becomes the part `replay`, and the transitions added since the checkpoint
        before are written as new segments. If anything fails, what was on disk before is still there and whole.
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
        """Delete all but the newest checkpoint, with what only they needed: the run is finished."""
        self._kept = self._kept[-1:]
        with disk.sentence(f"The checkpoints in {self.folder} cannot be tidied up"):
            self._prune()
            if not any(kept.segments for kept in self._kept):
                with contextlib.suppress(OSError):
                    (self.folder / _REPLAY).rmdir()

    def _write(self, checkpoint: Checkpoint, ring: RingStore | None) -> None:
        """All of `save` up to the moment from which the new checkpoint counts, or nothing of it."""
        final = checkpoint.path
        new, old = (final.with_name(f".{final.name}.{state}") for state in ("new", "old"))
        fresh: list[Path] = []  # segments written for this checkpoint
        try:
            disk.make_folder(self.folder)
            _delete_folder(new)
            new.mkdir(exist_ok=True)
            if ring is not None:
                checkpoint = replace(checkpoint, segments=self._store(ring, fresh))
            entries = {}
            for name, data in _files(checkpoint):
                disk.write(new / name, data)
                entries[name] = {"size": len(data), "sha256": disk.sha256(data)}
            disk.write(new / _MANIFEST, _manifest(entries))
            disk.sync(new)
            if final.is_dir() and _looks_ours(final):
                _delete_folder(old)
                os.rename(final, old)
            os.rename(new, final)
            self._kept = [kept for kept in self._kept if kept.episode < checkpoint.episode][-1:]
            self._kept.append(replace(checkpoint, parts={}))
        except BaseException:
            if new.exists():  # else it was renamed, and stands
                with contextlib.suppress(OSError):
                    if old.exists() and not final.exists():
                        os.rename(old, final)
                for path in fresh:
                    disk.delete(path)
                _delete_folder(new)
            raise

    def _store(self, ring: RingStore, fresh: list[Path]) -> tuple[Segment, ...]:
        """The segments that cover the ring; the paths of those that had to be written are added to `fresh`.

        If one that the checkpoint before names has gone, all from there on are written anew: the ring has them. All
        are, too, where more than half of what they hold is no longer live: a slow copy would keep on disk for ever
        what faster ones have long forgotten.
        """
        folder = self.folder / _REPLAY
        disk.make_folder(folder)
        before = next((kept.segments for kept in reversed(self._kept) if kept.segments), ())
        oldest, added = np.asarray(ring.oldest), np.asarray(ring.added)
        if before and np.any(before[-1].last > added):
            raise ValueError(f"the ring ends at {added}, before the last segment that it continues: {before[-1]}")
        live = (segment for segment in before if np.any(segment.last > np.maximum(segment.first, oldest)))
        segments = list(takewhile(lambda segment: disk.file_size(folder / segment.name) == segment.size, live))
        held = sum(np.mean(np.subtract(segment.last, segment.first)) for segment in segments)  # per copy
        if held > 2 * np.mean(added - oldest):
            segments = []
        start = np.maximum(segments[-1].last, oldest) if segments else oldest
        length = max(1, SEGMENT_BYTES // (ring.row_bytes * ring.copies))
        while np.any(start < added):
            end = np.minimum(start + length, added)
            segment, data = _packed_segment(ring, start, end)
            path = folder / segment.name
            if segment not in before or disk.file_size(path) != segment.size:
                fresh.append(path)
                disk.delete(path)  # of a writer that was killed, or of a checkpoint found damaged
                disk.write(path, data)
            segments.append(segment)
            start = end
        if fresh:
            disk.sync(folder)
        return tuple(segments)

    def _sweep(self) -> None:
        """Delete what killed writers did not finish."""
        for name in filter(_NEW.fullmatch, disk.names(self.folder)):
            _delete_folder(self.folder / name)

    def _prune(self) -> None:
        """Delete checkpoints that are not kept, and segments that no kept one names."""
        self._sweep()
        for place in _places(self.folder):
            if place.path not in [kept.path for kept in self._kept]:
                _delete_folder(place.path)
        named = {segment.name for kept in self._kept for segment in kept.segments}
        for name in filter(_SEGMENT.fullmatch, disk.names(self.folder / _REPLAY)):
            if name not in named:
                disk.delete(self.folder / _REPLAY / name)


def newest(folder: Path, parts: tuple[str, ...] = (), warn: Callable[[str], None] | None = None) -> Checkpoint | None:
    """The newest checkpoint in which these parts are whole, with nothing but them, or None if there is none at all.

    Nothing else is read and nothing on disk is touched: safe while another process trains and saves.
    """
    with disk.sentence(f"The checkpoints in {folder} cannot be read"):
        return _newest_whole(Path(folder), lambda place: _read_folder(place, parts), warn or (lambda text: None))


def newest_segment(folder: Path, warn: Callable[[str], None] | None = None) -> Arrays | None:
    """The newest transitions of the newest whole checkpoint, or None if it names no segments of the ring.

    Nothing on disk is touched.
    """
    found = newest(folder, (), warn)
    if found is None or not found.segments:
        return None
    with disk.sentence(f"The checkpoints in {folder} cannot be read"):
        *_, (_, data) = replace(found, segments=found.segments[-1:]).read_segments()
        return _unpack(data)


class _Place(NamedTuple):
    """A folder that claims to be a checkpoint. The inode tells it from another one of the same name."""

    episode: int
    path: Path
    inode: int


def _places(folder: Path) -> list[_Place]:
    """All checkpoint folders, the newest first; one that is being replaced comes after its successor."""
    places = []
    for name in disk.names(folder):
        path = folder / name
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            match = _FINAL.fullmatch(name) or _OLD.fullmatch(name)
            if match and path.is_dir() and not path.is_symlink() and _looks_ours(path):
                places.append(_Place(int(match["episode"]), path, path.stat().st_ino))
    return sorted(places, key=lambda place: (place.episode, place.path.name), reverse=True)  # "." is before digits


def _newest_whole(folder: Path, read: Callable[[_Place], Checkpoint], warn: Callable[[str], None]) -> Checkpoint | None:
    """What `read` makes of the newest checkpoint that it does not find damaged."""
    places = _places(folder)
    damage: list[str] = []
    for place in places:
        try:
            checkpoint = read(place)
        except disk.Damaged as error:
            if _places(folder) != places:  # the run went on and deleted what was being read: look again
                return _newest_whole(folder, read, warn)
            damage.append(f"{place.path} is damaged ({error})")
        else:
            for what in damage:
                warn(f"Checkpoint {what}; the one before it, {checkpoint.path.name}, is used.")
            return checkpoint
    if damage:
        raise UserError(
            f"No whole checkpoint is left: {', '.join(damage)}; put a copy back or remove {folder} to start over."
        )
    return None


def _read_folder(place: _Place, parts: tuple[str, ...] | None = None) -> Checkpoint:
    """A checkpoint with all its parts, or with those asked for."""
    files = _read_manifest(place.path)
    facts = json.loads(disk.read(place.path / _META, *files.pop(_META)))
    if facts["episode"] != place.episode:
        raise disk.Damaged(f"it is that of episode {facts['episode']}")
    arrays = {
        name.removesuffix(_SUFFIX): _unpack(disk.read(place.path / name, *expected))
        for name, expected in files.items()
        if parts is None or name.removesuffix(_SUFFIX) in parts
    }
    segments = tuple(Segment(**entry) for entry in facts["segments"])
    return Checkpoint(place.path, place.episode, arrays, facts["meta"], segments)


def _read_all(place: _Place) -> Checkpoint:
    """A checkpoint with all its parts, its segments checked as well."""
    checkpoint = _read_folder(place)
    for _ in checkpoint.read_segments():
        pass
    return checkpoint


def _read_manifest(path: Path) -> dict[str, tuple[int, str]]:
    """The size and checksum of each file of a checkpoint."""
    try:
        manifest = disk.unsealed(json.loads(disk.read(path / _MANIFEST)))
    except (ValueError, RecursionError):
        raise disk.Damaged(f"{_MANIFEST} has a wrong checksum") from None
    if manifest["format"] != FORMAT:
        raise UserError(
            f"{path} has format {manifest['format']}, but this version of Shoal reads format {FORMAT}; train the run "
            "anew, or use the version that it was trained with."
        )
    return {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}


def _packed_segment(ring: RingStore, start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[Segment, bytes]:
    """The transitions [start, end) of a ring as a segment, and the bytes of its file."""
    first, last = one_or_each(start), one_or_each(end)
    data = _pack(ring.segment(first, last))
    sha256 = disk.sha256(data)
    name = f"{start.sum():012d}-{end.sum():012d}-{sha256[:16]}"
    if isinstance(first, int) and isinstance(last, int):
        name = f"{first:012d}-{last:012d}"
    return Segment(f"{name}{_SUFFIX}", first, last, len(data), sha256), data


def _files(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each file of a checkpoint but the manifest, one at a time."""
    for part, arrays in checkpoint.parts.items():
        yield f"{part}{_SUFFIX}", _pack(arrays)
    segments = [segment._asdict() for segment in checkpoint.segments]
    yield _META, _json({"episode": checkpoint.episode, "meta": checkpoint.meta, "segments": segments})


def _manifest(entries: dict[str, dict[str, Any]]) -> bytes:
    """The size and checksum of each file, under a checksum of their own."""
    return _json(disk.sealed({"format": FORMAT, "files": entries}))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


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
    """Whether a folder is a checkpoint or the rest of one: eight digits may also be the date of someone's notes."""
    names = os.listdir(folder)
    return not names or any(map(_is_ours, names))


def _delete_folder(path: Path) -> None:
    """Delete a checkpoint's files, and its folder unless something else is in it."""
    with contextlib.suppress(OSError):
        for name in filter(_is_ours, disk.names(path)):
            disk.delete(path / name)
        os.rmdir(path)
