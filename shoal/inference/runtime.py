"""ONNX Runtime as Shoal uses it: sessions on the CPU, a given number of threads, no log messages and no telemetry.

Other modules import onnxruntime from here: its telemetry starts with the import (a device ID and a database in the
user's cache, and uploads to Microsoft), and only this variable prevents that.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

onnxruntime.disable_telemetry_events()  # if it was imported before


def session_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """Session options: this many threads, no log messages, no memory arena."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # errors are raised
    return options


def new_session(model: bytes, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    """A session on the CPU."""
    options = options or session_options()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def reason(error: Exception) -> str:
    """ONNX Runtime's error message without its codes."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.split(" : ")[-1].strip()[:160].rstrip(".: ")
