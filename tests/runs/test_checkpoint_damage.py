"""Whatever happens to the files: it is noticed, told in a sentence, and the checkpoint before is used."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_ring import FakeRing, check, load, load_part, names, no_warning, save, two_checkpoints

from shoal.errors import UserError
from shoal.runs import checkpoint as module
from shoal.runs import disk
from shoal.runs.checkpoint import Checkpoints


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return two_checkpoints(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def no_sync() -> Iterator[None]:
    """What syncing is for does not happen here, and it takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("")


def put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "altered": flip,
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": Path.unlink,
    "a folder": put_a_folder,
    "a pipe": put_a_pipe,
    "a loop": lambda path: (path.unlink(), path.symlink_to(path.name)),
}
FILES = [f"00000002/{name}" for name in ("weights", "random", "replay", "meta", "manifest")]
FILES = [f"{name}.json" if name.endswith(("meta", "manifest")) else f"{name}.safetensors" for name in FILES]
SEGMENT = "replay/000000000010-000000000030.safetensors"


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", [*FILES, SEGMENT])
def test_damaged_checkpoint_falls_back_to_the_previous(two: Path, name: str, how: str) -> None:
    if (name, how) == ("00000002/manifest.json", "longer"):
        pytest.skip("a space behind JSON changes nothing")
    DAMAGE[how](two / name)
    said: list[str] = []
    store = Checkpoints(two)
    ring = check(store.load(said.append))
    assert ring.added == 10
    assert len(said) == 1
    assert re.fullmatch(
        rf"Checkpoint {two}/00000002 is damaged \({Path(name).name} .+\); the previous one, 00000001, is used\.",
        said[0],
    )
    save(store, 2, ring.add(20))  # the same names again: the damaged things are in the way
    assert names(two) == ["00000001", "00000002", "replay"]
    assert check(load(two)).added == 30


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_shared_segment_is_refused(two: Path, how: str) -> None:
    DAMAGE[how](two / "replay/000000000000-000000000010.safetensors")
    with pytest.raises(UserError, match="No intact checkpoint is left: ") as error:
        Checkpoints(two).load(no_warning)
    text = str(error.value)
    assert "00000001 is damaged" in text and "00000002 is damaged" in text and "\n" not in text
    assert load_part(two, "weights") is not None  # the team itself can still be played


@pytest.mark.parametrize("name", ["manifest.json", "meta.json"])
def test_every_flipped_bit_of_the_json_files_is_found(two: Path, name: str) -> None:
    path = two / "00000002" / name
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        said: list[str] = []
        assert load_part(two, "weights", said.append) is not None
        assert len(said) == 1, place


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '"sha256"', "{}", '{"sha256": 1}', "[" * 100_000, "\ud800"])
def test_a_manifest_of_another_kind_is_damage(two: Path, text: str) -> None:
    (two / "00000002/manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    said: list[str] = []
    assert check(Checkpoints(two).load(said.append)).added == 10
    assert len(said) == 1


def test_an_empty_folder_is_a_damaged_checkpoint(two: Path) -> None:
    (two / "00000003").mkdir()
    said: list[str] = []
    assert check(Checkpoints(two).load(said.append)).added == 30
    assert said == [
        f"Checkpoint {two}/00000003 is damaged (manifest.json is missing); the previous one, 00000002, is used."
    ]


def test_a_checkpoint_under_the_name_of_another_episode_is_damage(two: Path) -> None:
    (two / "00000002").rename(two / "00000700")
    said: list[str] = []
    assert check(Checkpoints(two).load(said.append)).added == 10
    assert "it belongs to episode 2" in said[0]


def test_every_damaged_checkpoint_is_reported(two: Path) -> None:
    for episode in (7, 8):
        shutil.copytree(two / "00000002", two / f"{episode:08d}")
    said: list[str] = []
    assert check(Checkpoints(two).load(said.append)).added == 30
    assert len(said) == 2 and all("00000002, is used" in text for text in said)


def test_newer_format_is_not_reported_as_damage(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", 99)
        save(store, 3, ring.add(2))
    with pytest.raises(UserError, match=f"has format 99, but this version of Shoal reads format {module.FORMAT}"):
        Checkpoints(two).load(no_warning)


def test_unreadable_file_is_not_reported_as_damage(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"cannot be read: Permission denied \(.*manifest.json\)\.$"):
        Checkpoints(two).load(no_warning)


def test_io_error_is_damage(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == two / "00000002/random.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    said: list[str] = []
    assert check(Checkpoints(two).load(said.append)).added == 10
    assert "random.safetensors cannot be read: Input/output error" in said[0]


def test_segment_changed_after_its_check_is_refused(two: Path) -> None:
    found = load(two)
    flip(two / SEGMENT)
    with pytest.raises(UserError, match=r"The replay of checkpoint .*00000002 cannot be read: .* wrong checksum\.$"):
        found.load_ring(FakeRing())


# --- one part, while others write ----------------------------------------------------------------------------------


def test_single_part_can_be_read(two: Path) -> None:
    DAMAGE["altered"](two / "00000002/random.safetensors")
    DAMAGE["deleted"](two / SEGMENT)
    (two / ".00000003.new").mkdir()
    weights = load_part(two, "weights", no_warning)
    assert weights is not None and weights["w"].tolist() == [[2.0] * 3] * 2
    assert (two / ".00000003.new").is_dir()  # its writer may be alive
    said: list[str] = []
    counter = load_part(two, "random", said.append)
    assert counter is not None and counter["counter"] == 1 and len(said) == 1


def test_reader_follows_a_running_training(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is deleted by the run between the reader's listing and its reading."""
    store = Checkpoints(two)
    ring = check(store.load(no_warning))
    read = disk.read

    def late(path: Path, *expected: Any) -> bytes:
        monkeypatch.setattr(disk, "read", read)
        for episode in (3, 4, 5):
            save(store, episode, ring.add(2))
        return read(path, *expected)

    monkeypatch.setattr(disk, "read", late)
    weights = load_part(two, "weights", no_warning)
    assert weights is not None and weights["w"][0, 0] == 5
