"""Files that are whole, and errors that are sentences."""

import errno
import os
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.runs import disk


def test_files_round_trip(tmp_path: Path) -> None:
    disk.write(tmp_path / "file", b"abc")
    assert disk.read(tmp_path / "file", 3, disk.sha256(b"abc")) == b"abc"
    assert disk.file_size(tmp_path / "file") == 3
    assert disk.names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("size", "text", "why"),
    [(4, b"abc", "has 3 bytes instead of 4"), (3, b"abd", "has a wrong checksum"), (None, b"", "has a wrong checksum")],
)
def test_changed_files_are_damaged(tmp_path: Path, size: int | None, text: bytes, why: str) -> None:
    disk.write(tmp_path / "file", b"abc")
    with pytest.raises(disk.Damaged, match=f"^file {why}$"):
        disk.read(tmp_path / "file", size, disk.sha256(text))


def test_missing_files_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, why in (("nothing", "missing"), ("folder", "not a file"), ("folder/x/y", "missing")):
        with pytest.raises(disk.Damaged, match=f"{Path(name).name} is {why}"):
            disk.read(tmp_path / name)
        assert disk.file_size(tmp_path / name) is None
    assert disk.names(tmp_path / "nothing") == []


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    disk.write(tmp_path / "file", b"abc")
    with pytest.raises(FileExistsError):
        disk.write(tmp_path / "file", b"x")
    assert disk.read(tmp_path / "file") == b"abc"


def test_folders_are_made_once_and_only_in_existing_ones(tmp_path: Path) -> None:
    disk.make_folder(tmp_path / "new")
    disk.make_folder(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    with pytest.raises(FileNotFoundError):
        disk.make_folder(tmp_path / "missing" / "new")


def test_file_systems_without_folder_sync_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        def fsync(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(errno.EINVAL)
    disk.sync(tmp_path)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        disk.write(tmp_path / "file", b"abc")


def test_deleting_ignores_links_and_errors(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    disk.delete(tmp_path / "link")
    assert disk.names(tmp_path / "folder") == ["file"]
    disk.delete(tmp_path / "folder")
    disk.delete(tmp_path / "folder")
    assert disk.names(tmp_path) == []


def test_system_errors_become_user_errors(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(UserError) as error, disk.sentence("It cannot be done"):
        missing.read_text()
    assert str(error.value) == f"It cannot be done: No such file or directory ({missing})."
    with pytest.raises(UserError) as error, disk.sentence("It cannot be done"):
        disk.read(missing)
    assert str(error.value) == "It cannot be done: missing is missing."
    with pytest.raises(UserError) as error, disk.sentence("It cannot be done"):
        raise OSError("odd")
    assert str(error.value) == "It cannot be done: odd."
    with pytest.raises(ZeroDivisionError), disk.sentence("It cannot be done"):
        raise ZeroDivisionError
