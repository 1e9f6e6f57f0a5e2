"""Linux control groups, versions 1 and 2: where the limits of this process are written."""

from collections.abc import Iterator
from pathlib import Path


def group_folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Version and folder of this process's group and of those above it, for one controller such as "memory" or "cpu".

    `root` is where /proc and /sys are looked for. A container may see its own group at the top of the tree.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            version, mount = 2, "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, mount = 1, f"sys/fs/cgroup/{controller}"
        else:
            continue
        group = Path(path.strip("/"))
        for part in (group, *group.parents):
            yield version, root / mount / part


def read_text(path: Path) -> str:
    """The text of a file, empty where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def read_number(path: Path) -> int | None:
    """The one number in a file; None where it is missing or says `max`."""
    text = read_text(path).strip()
    return int(text) if text.isdecimal() else None
