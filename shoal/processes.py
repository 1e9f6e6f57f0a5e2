"""What a process is told before its first heavy import: how threads wait, where compiled loops are kept."""

import atexit
import gc
import os
import stat
import tempfile
import warnings
from pathlib import Path

from shoal.limits import live_within_limits
from shoal.processors import usable_processors


def prepare() -> None:
    """Make this process a good neighbour; what the person has set in the environment stands."""
    # Threads that wait for each other spin for a moment and then sleep: on a machine with other work to do, spinning
    # takes the processor from the very thread that is waited for.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    os.environ.setdefault("OMP_NUM_THREADS", str(usable_processors()))  # OpenMP knows nothing of a container's quota
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would tell when it starts and stops,
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # and that it saw only what happened in between
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # numba's, where /dev/shm is full or missing; it is for programs that fork while they import numba
    warnings.filterwarnings("ignore", ".*Could not obtain multiprocessing lock")
    # The libraries make a million objects that live until the end: looking through them for garbage over and over while
    # they are imported, and once more at exit, took a third of the time of a short run.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    live_within_limits()
    if "NUMBA_CACHE_DIR" not in os.environ and not any(map(writable, numba_places())):
        os.environ["NUMBA_CACHE_DIR"] = str(own_place(Path(tempfile.gettempdir()) / f"shoal-numba-{os.getuid()}"))


def numba_places() -> tuple[Path, Path]:
    """Where numba keeps compiled loops if it can: beside the code, or in the person's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache"
    return Path(__file__).parent / "envs" / "__pycache__", Path(cache) / "numba"


def own_place(folder: Path) -> Path:
    """This folder if nobody else can put code there for us to run, else a new one."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="shoal-numba-"))


def writable(folder: Path) -> bool:
    """Whether files can be written there, after making it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
