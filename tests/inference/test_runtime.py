"""ONNX Runtime without telemetry."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_file_of_telemetry_appears_in_the_users_cache(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", "import shoal.inference.runtime"], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


def test_onnxruntime_is_imported_in_one_place():
    """Its telemetry starts with the first import."""
    own = [*(ROOT / "shoal").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    direct = [path for path in own if re.search(r"^\s*(import|from) onnxruntime\b", path.read_text(), re.M)]
    assert direct == [ROOT / "shoal" / "inference" / "runtime.py"]
