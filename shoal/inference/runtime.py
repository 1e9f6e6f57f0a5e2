"""ONNX Runtime sessions as Shoal uses them: on the CPU, with a given number of threads, without log messages."""

import onnxruntime


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
