"""What is saved comes back, what is needed no more goes, and what is not ours is left alone."""

import json
import math
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_ring import FakeRing, check, load, load_part, names, no_warning, parts_of, save, two_checkpoints
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.envs.base import EnvSpec, Step
from shoal.errors import UserError
from shoal.replay import Ring
from shoal.runs import checkpoint as module
from shoal.runs.checkpoint import Checkpoints
from tests.replay.model import all_live


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return two_checkpoints(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def no_sync() -> Iterator[None]:
    """What syncing is for does not happen here, and it takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


# --- what is saved comes back --------------------------------------------------------------------------------------


ARRAYS = {
    "scalar": np.array(-0.0),
    "empty": np.zeros((0, 3), np.uint16),
    "bool": np.array([[True], [False]]),
    "uint64": np.array([2**64 - 1, 0], np.uint64),
    "nan": np.array([0x7FC00001, 0xFF800000], np.uint32).view(np.float32),
    "float16": np.array([[[65504.0]]], np.float16),
    "complex64": np.array([1 + 2j], np.complex64),
    "transposed": np.arange(12, dtype=np.int32).reshape(3, 4).T,
    "strided": np.arange(12, dtype=np.int64)[::-3],
    "with.dots and spaces/slashes": np.array([-128], np.int8),
}


def test_arrays_round_trip_with_type_shape_and_bits(folder: Path) -> None:
    Checkpoints(folder).save(7, {"weights": ARRAYS, "nothing": {}}, {})
    parts = load(folder).parts
    assert parts["nothing"] == {}
    assert parts["weights"].keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        back = parts["weights"][name]
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes()), name
        assert back.flags.writeable and back.flags.c_contiguous


def test_big_endian_arrays_keep_their_values(folder: Path) -> None:
    Checkpoints(folder).save(7, {"weights": {"w": np.arange(3, dtype=">i4")}}, {})
    assert load(folder).parts["weights"]["w"].tolist() == [0, 1, 2]


words = st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None)
@given(meta=st.dictionaries(words, json_values, max_size=3))
def test_meta_round_trips(meta: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as run:
        Checkpoints(Path(run, "checkpoints")).save(1, {}, meta)
        assert repr(load(Path(run, "checkpoints")).meta) == repr(meta)  # repr: NaN differs from itself


def test_random_states_and_non_finite_numbers_round_trip(folder: Path) -> None:
    state = np.random.PCG64(3).state
    Checkpoints(folder).save(1, {}, {"state": state, "best": -math.inf, "loss": math.nan})
    meta = load(folder).meta
    assert meta["state"] == state and meta["best"] == -math.inf and math.isnan(meta["loss"])


@pytest.mark.parametrize(
    "arrays",
    [{"a": np.array([None])}, {"a": np.array(["text"])}, {"a": np.zeros(2, "V2")}, {"__metadata__": np.zeros(2)}],
    ids=["object", "text", "void", "reserved name"],
)
def test_unsupported_arrays_are_refused(folder: Path, arrays: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        Checkpoints(folder).save(1, {"weights": arrays}, {})
    assert names(folder) == []


def test_meta_that_is_not_json_is_refused_and_undone(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    before = sorted(two.rglob("*"))
    with pytest.raises(TypeError):
        save(store, 3, ring.add(4), odd=object())
    assert sorted(two.rglob("*")) == before
    save(store, 3, ring.add(2))
    assert check(load(two)).added == 36


@pytest.mark.parametrize("part", ["../weights", "", "a.b"])
def test_part_names_must_be_plain(folder: Path, part: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        Checkpoints(folder).save(1, {part: {}}, {})


def test_newest_without_checkpoints_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "missing").load(no_warning) is None
    assert Checkpoints(tmp_path).load(no_warning) is None
    assert load_part(tmp_path, "weights") is None


def test_save_returns_the_folder_named_by_the_episode(folder: Path) -> None:
    store = Checkpoints(folder)
    assert save(store, 1600, FakeRing()) == folder / "00001600"
    assert save(store, 123_456_789, FakeRing()) == folder / "123456789"
    assert load(folder).episode == 123_456_789


def test_manifest_lists_the_files(two: Path) -> None:
    manifest = json.loads((two / "00000002/manifest.json").read_text())
    assert manifest["format"] == module.FORMAT
    assert set(manifest["files"]) | {"manifest.json"} == set(names(two / "00000002"))
    meta = json.loads((two / "00000002/meta.json").read_text())
    assert [segment["name"] for segment in meta["segments"]] == names(two / "replay")


# --- which checkpoints and segments are there ----------------------------------------------------------------------


def test_the_last_two_checkpoints_are_kept(folder: Path) -> None:
    store, ring = Checkpoints(folder), FakeRing()
    for episode in (5, 40, 300):
        save(store, episode, ring.add(2))
    assert names(folder) == ["00000040", "00000300", "replay"]
    assert check(load(folder)).added == 6


def test_only_new_transitions_are_written_and_old_segments_stay_untouched(folder: Path) -> None:
    store, ring = Checkpoints(folder), FakeRing()
    save(store, 1, ring.add(10))
    first = folder / "replay/000000000000-000000000010.safetensors"
    before = first.stat()
    save(store, 2, ring.add(6))
    save(store, 3, ring)  # nothing was added
    assert names(folder / "replay") == [first.name, "000000000010-000000000016.safetensors"]
    after = first.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [segment.name for segment in load(folder).segments] == names(folder / "replay")


def test_unreferenced_segments_are_deleted(folder: Path) -> None:
    store, ring = Checkpoints(folder), FakeRing(capacity=40)
    for episode in range(1, 8):
        save(store, episode, ring.add(10))
        assert check(load(folder)).added == ring.added
    # The ring holds 30-70, and the checkpoint before held 20-60.
    assert names(folder / "replay") == [f"{n:012d}-{n + 10:012d}.safetensors" for n in range(20, 70, 10)]


def test_a_segment_that_is_partly_overwritten_is_still_named(folder: Path) -> None:
    store, ring = Checkpoints(folder), FakeRing(capacity=40)
    save(store, 1, ring.add(30))
    save(store, 2, ring.add(26))  # holds 16-56
    assert [(s.first, s.last) for s in load(folder).segments] == [(0, 30), (30, 56)]
    check(load(folder))


def test_more_than_a_whole_ring_between_two_checkpoints(folder: Path) -> None:
    store, ring = Checkpoints(folder), FakeRing(capacity=40)
    save(store, 1, ring.add(10))
    save(store, 2, ring.add(100))
    assert [(s.first, s.last) for s in load(folder).segments] == [(70, 110)]
    check(load(folder))


@pytest.mark.parametrize(("limit", "lengths"), [(1, [1] * 30), (24 * 8, [8, 8, 8, 6]), (24 * 9 - 1, [8, 8, 8, 6])])
def test_long_ranges_are_split(folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int, lengths: list[int]) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", limit)
    save(Checkpoints(folder), 1, FakeRing(copies=2).add(30))
    segments = load(folder).segments
    assert [segment.last - segment.first for segment in segments] == lengths
    assert check(load(folder)).added == 30


def test_a_checkpoint_without_ring_names_no_segments_and_the_next_one_shares_those_before_it(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    segments = load(two).segments
    store.save(3, parts_of(3), {})
    assert load(two).segments == ()
    save(store, 4, ring)
    assert check(load(two)).added == 30 and load(two).segments == segments


def test_unfinished_files_of_killed_writers_are_removed(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    for tidy in (lambda: store.load(no_warning), lambda: save(store, 3, ring.add(2))):
        shutil.copytree(two / "00000002", two / ".00000009.new")
        tidy()
        assert not (two / ".00000009.new").exists()


def test_orphans_are_overwritten_or_removed(two: Path) -> None:
    """Segments of a writer that was killed before its checkpoint counted may hold another future."""
    other = FakeRing(salt=1).add(40)
    same_name = two / "replay/000000000030-000000000034.safetensors"
    other_name = two / "replay/000000000030-000000000036.safetensors"
    for path, last in ((same_name, 34), (other_name, 36)):
        path.write_bytes(module._pack(other.segment(30, last)))
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    save(store, 3, ring.add(4))
    assert check(load(two)).added == 34
    assert not other_name.exists()


def test_missing_segments_are_rewritten(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    (two / "replay/000000000010-000000000030.safetensors").unlink()
    save(store, 3, ring.add(2))
    assert [(s.first, s.last) for s in load(two).segments] == [(0, 10), (10, 32)]
    check(load(two))


def test_missing_checkpoints_folder_is_recreated(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    shutil.rmtree(two)
    save(store, 3, ring.add(2))
    assert check(load(two)).added == 32


def test_the_ring_may_not_be_behind_the_checkpoint_it_continues(two: Path) -> None:
    store = Checkpoints(two)
    store.load(no_warning)
    with pytest.raises(ValueError, match="the ring ends at 4"):
        save(store, 3, FakeRing().add(4))
    assert check(load(two)).added == 30


def test_a_second_checkpoint_of_an_episode_replaces_the_first(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    save(store, 2, ring.add(4))
    assert names(two) == ["00000001", "00000002", "replay"]
    assert check(load(two)).added == 34
    shutil.rmtree(two / "00000002")
    assert check(load(two)).added == 10


@pytest.mark.parametrize("successor", ["missing", "damaged", "whole"])
def test_interrupted_replacement_is_undone_or_completed(two: Path, successor: str) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    shutil.copytree(two / "00000002", two.parent / "before")
    save(store, 2, ring.add(4))
    shutil.move(two.parent / "before", two / ".00000002.old")
    if successor == "missing":
        shutil.rmtree(two / "00000002")
    if successor == "damaged":
        (two / "00000002/meta.json").unlink()
    said: list[str] = []
    weights = load_part(two, "weights", said.append)
    assert weights is not None and weights["w"][0, 0] == 2

    store = Checkpoints(two)
    ring = check(store.load(said.append))
    assert ring.added == (34 if successor == "whole" else 30)
    assert len(said) == (2 if successor == "damaged" else 0)
    save(store, 3, ring.add(4))
    assert names(two) == ["00000002", "00000003", "replay"]
    shutil.rmtree(two / "00000003")
    check(load(two))


def test_a_fresh_run_does_not_touch_the_checkpoints_of_another(two: Path) -> None:
    with pytest.raises(UserError, match="earlier run") as error:
        save(Checkpoints(two), 9, FakeRing().add(10))
    assert str(two) in str(error.value)
    assert check(load(two)).added == 30


def test_resuming_an_older_checkpoint_drops_later_ones(two: Path) -> None:
    damage = two / "00000002/weights.safetensors"
    damage.write_bytes(b"")
    store = Checkpoints(two)
    said: list[str] = []
    ring = check(store.load(said.append))
    assert (len(said), ring.added) == (1, 10)
    save(store, 1, ring.add(4))  # an earlier episode than the damaged one
    assert names(two) == ["00000001", "replay"]
    assert names(two / "replay") == [f"{a:012d}-{b:012d}.safetensors" for a, b in ((0, 10), (10, 14))]
    check(load(two))


# --- things that are not ours --------------------------------------------------------------------------------------


def test_foreign_files_are_not_touched(two: Path) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    texts = [
        "notes.txt",
        "1600/weights.safetensors",
        "20240101/photo.jpg",
        "00000001 copy/meta.json",
        "00000001/my.txt",
    ]
    texts += ["replay/readme", "replay/best.safetensors", ".hidden", ".git/config", "000000009/meta.json", "00000099"]
    for name in texts:
        (two / name).parent.mkdir(exist_ok=True)
        (two / name).write_text(name)
    (two / "00000098").symlink_to(two / "1600")
    for episode in (3, 4, 5):
        save(store, episode, ring.add(20))
    assert check(load(two)).added == 90
    for name in texts:
        assert (two / name).read_text() == name
    assert (two / "00000098").is_symlink()
    assert names(two / "00000001") == ["my.txt"]


@pytest.mark.parametrize("name", ["00000003", "00000003/notes.txt"])
def test_foreign_file_named_like_a_checkpoint_is_refused(two: Path, name: str) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    (two / name).parent.mkdir(exist_ok=True)
    (two / name).write_text("mine")
    with pytest.raises(UserError, match=r"00000003 could not be written: (Not a directory|Directory not empty)"):
        save(store, 3, ring.add(2))
    assert (two / name).read_text() == "mine"
    assert check(load(two)).added == 30
    assert names(two / "replay")[-1] == "000000000010-000000000030.safetensors"


# --- the real ring -------------------------------------------------------------------------------------------------


def random_step(rng: np.random.Generator, copies: int) -> tuple[NDArray[np.float32], Step]:
    """Actions (E, N, A) and what came of them, with ends of episodes here and there."""
    actions, observation, final = (rng.random((copies, 2, size), np.float32) for size in (2, 3, 3))
    ended = rng.random(copies) < 0.3
    final[~ended] = observation[~ended]
    agents = (copies, 2)
    terminated = ended[:, None] & (rng.random(agents) < 0.5)
    return actions, Step(
        observation, rng.random(agents, np.float32), terminated, ended, np.ones(agents, bool), ended, final
    )


def everything(ring: Ring) -> list[NDArray[Any]]:
    """All that can be drawn from a ring."""
    return [array.copy() for array in ring.gather(*all_live(ring))]


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_replay_ring_round_trips_and_continues(folder: Path, monkeypatch: pytest.MonkeyPatch, storage: str) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1000)
    spec = EnvSpec("toy", ("a", "b"), (3, 3), (2, 2), discrete=True)
    rng = np.random.default_rng(0)
    ring = Ring(spec, 3, capacity=60, storage=storage)
    ring.begin(rng.random((3, 2, 3), np.float32))
    store = Checkpoints(folder)
    for episode in range(1, 8):
        for _ in range(7):
            ring.add(*random_step(rng, 3))
        store.save(episode, {}, {}, ring)

        back = Ring(spec, 3, capacity=60, storage=storage)
        load(folder).load_ring(back)
        for moment in range(2):  # as it was, and after the same step in both
            assert np.array_equal(back.oldest, ring.oldest) and np.array_equal(back.added, ring.added)
            for ours, theirs in zip(everything(back), everything(ring), strict=True):
                assert np.array_equal(ours, theirs)
            if moment == 0:
                step = random_step(rng, 3)
                ring.add(*step)
                back.add(*step)
    assert ring.oldest.min() > 0 and len(load(folder).segments) > 2


def random_chunk(rng: np.random.Generator, copies: list[int], time: int) -> tuple[list[int], NDArray[np.float32], Step]:
    """What `Ring.add_chunk` takes."""
    moments = [random_step(rng, len(copies)) for _ in range(time)]
    steps = Step(*map(np.array, zip(*(step for _, step in moments), strict=True)))
    return copies, np.array([actions for actions, _ in moments]), steps


def test_replay_ring_of_uneven_copies_round_trips(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy is fast, one slow, one begins late; what the fast one has forgotten does not stay on disk for ever."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1000)
    spec = EnvSpec("toy", ("a", "b"), (3, 3), (2, 2), discrete=True)
    rng = np.random.default_rng(0)
    ring, store = Ring(spec, 3, capacity=90), Checkpoints(folder)
    ring.begin(rng.random((2, 2, 3), np.float32), [0, 2])
    anew = 0
    for episode in range(1, 30):
        before = load(folder).segments if episode > 1 else ()
        ring.add_chunk(*random_chunk(rng, [2], 11))
        ring.add_chunk(*random_chunk(rng, [0, 2], 1))
        if episode == 20:
            ring.begin(rng.random((1, 2, 3), np.float32), [1])
        if episode > 20:
            ring.add_chunk(*random_chunk(rng, [1], 1 + episode % 4))
        store.save(episode, {}, {}, ring)

        found = load(folder)
        anew += not set(map(str, before)) & set(map(str, found.segments))
        held = sum(np.sum(np.subtract(segment.last, segment.first)) for segment in found.segments)
        assert held <= 3 * len(ring)  # twice, and what is new
        back = Ring(spec, 3, capacity=90)
        found.load_ring(back)
        assert np.array_equal(back.oldest, ring.oldest) and np.array_equal(back.added, ring.added)
        for ours, theirs in zip(everything(back), everything(ring), strict=True):
            assert np.array_equal(ours, theirs)
        if episode % 7 == 0:  # goes on in another process
            ring, store = back, Checkpoints(folder)
            store.load(no_warning)
    assert 1 < anew < 10
    assert ring.added.tolist()[2] == 29 * 12 and ring.oldest[2] > 0 and ring.oldest[0] == 0
    named = {name for kept in names(folder) if kept != "replay" for name in segment_names(folder / kept)}
    assert set(names(folder / "replay")) == named and len(names(folder)) == 3


def segment_names(checkpoint: Path) -> list[str]:
    """The segments that a checkpoint needs."""
    return [segment["name"] for segment in json.loads((checkpoint / "meta.json").read_text())["segments"]]


def test_files_are_written_one_at_a_time_in_memory(tmp_path):
    """Weights and moments of large networks: saving both takes no more memory than saving one of them."""
    part = {"array": np.zeros(2**20, np.float32)}

    def peak(folder, parts):
        checkpoints = Checkpoints(tmp_path / folder)
        tracemalloc.start()
        checkpoints.save(1, parts, {})
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak("both", {"weights": part, "optimizer": part}) < 1.2 * peak("one", {"weights": part})


def test_a_ring_that_restarts_after_every_checkpoint(folder: Path) -> None:
    """As a run with actors that is resumed again and again; and one that an earlier version has saved so."""
    spec = EnvSpec("toy", ("a", "b"), (3, 3), (2, 2), discrete=True)
    rng = np.random.default_rng(0)
    ring, store = Ring(spec, 3, capacity=300), Checkpoints(folder)
    for episode in range(1, 6):
        ring.restart(rng.random((3, 2, 3), np.float32), [0, 1, 2])
        ring.add_chunk(*random_chunk(rng, [0, 1, 2], 4))
        store.save(episode, {}, {}, ring)
        back = Ring(spec, 3, capacity=300)
        assert load(folder).load_ring(back) == 0
        for ours, theirs in zip(everything(back), everything(ring), strict=True):
            assert np.array_equal(ours, theirs)
        ring, store = back, Checkpoints(folder)
        assert store.load(no_warning) is not None
    assert len(load(folder).segments) == 5

    old = OldRing(spec, 3, capacity=300)
    shutil.rmtree(folder)
    store = Checkpoints(folder)
    for episode in range(1, 4):
        old.restart(rng.random((3, 2, 3), np.float32), [0, 1, 2])
        old.add_chunk(*random_chunk(rng, [0, 1, 2], 4))
        store.save(episode, {}, {}, old)
    names_before = {segment.name for segment in load(folder).segments}
    mended, store = Ring(spec, 3, capacity=300), Checkpoints(folder)
    found = store.load(no_warning)
    assert found is not None and 0 < (missing := found.load_ring(mended)) == 36 - len(mended) <= 6
    store.write_whole_ring()
    mended.restart(rng.random((3, 2, 3), np.float32), [0, 1, 2])
    mended.add_chunk(*random_chunk(rng, [0, 1, 2], 4))
    store.save(4, {}, {}, mended)
    assert not names_before & {segment.name for segment in load(folder).segments}
    back = Ring(spec, 3, capacity=300)
    assert load(folder).load_ring(back) == 0 and len(back) == 48 - missing
    (folder / "00000004" / "meta.json").unlink()  # the one before is still whole
    newest = Checkpoints(folder).load(lambda text: None)
    assert newest is not None and newest.episode == 3
    assert newest.load_ring(Ring(spec, 3, capacity=300)) == missing


class OldRing(Ring):
    """Saves what earlier versions saved."""

    def state(self) -> dict[str, NDArray[Any]]:
        return {name: array for name, array in super().state().items() if name != "after"}

    def segment(self, *window: Any) -> dict[str, NDArray[Any]]:
        return {name: array for name, array in super().segment(*window).items() if name != "before"}
