"""`shoal bench startup`: what a command takes before and after its real work, compared with a bare `import torch`.

A run of one episode learns nothing: its time is that of starting up, of one evaluation and of drawing the curve. Each
command is a process of its own; they take turns, after one turn that is not counted and may compile native code.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from shoal.bench import Record
from shoal.results import Column

SHOAL = "import sys; from shoal.cli import main; sys.exit(main())"
COMMANDS = {
    "train --help": ("train", "--help"),
    "train --episodes 0 (refused)": ("train", "--episodes", "0"),
    "train --episodes 1": ("train", "--episodes", "1"),
    "train --episodes 1 --update torch": ("train", "--episodes", "1", "--update", "torch"),
}
REFUSED = 2
COLUMNS = {
    "command": Column("shoal …"),
    "cpu_seconds": Column("CPU time", "s"),
    "seconds": Column("time", "s"),
    "torch_cpu_seconds": Column("import torch, CPU time", "s"),
    "ratio": Column("CPU time relative to import torch", format=".2f"),
}
PARTS = tuple(COMMANDS)


def run(command: str, turns: int = 5) -> list[Record]:
    """Medians over the turns."""
    shoal, torch = [], []
    for turn in range(turns + 1):
        both = measured(SHOAL, *COMMANDS[command]), measured("import torch")
        if turn:
            shoal.append(both[0])
            torch.append(both[1])
    (cpu, wall), (torch_cpu, _) = ([statistics.median(of) for of in zip(*own, strict=True)] for own in (shoal, torch))
    times = {"cpu_seconds": cpu, "seconds": wall, "torch_cpu_seconds": torch_cpu}
    return [{"command": command, **times, "ratio": cpu / torch_cpu}]


def measured(code: str, *words: str) -> tuple[float, float]:
    """CPU time and time of a Python process, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-c", code, *words]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        passed = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, REFUSED):
        raise RuntimeError(f"{' '.join(words) or code} ended with exit code {process.returncode}")
    return used.ru_utime + used.ru_stime, passed
