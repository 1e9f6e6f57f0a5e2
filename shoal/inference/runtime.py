"""ONNX Runtime as Shoal uses it: on the processor, with so many threads and no words."""

import onnxruntime


def session_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """So many threads, no words on what is optimised, no memory kept for another day."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # what goes wrong is raised
    return options


def new_session(model: bytes, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    """A session on the processor."""
    options = options or session_options()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def reason(error: Exception) -> str:
    """The runtime's complaint without its codes."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.split(" : ")[-1].strip()[:160].rstrip(".: ")
