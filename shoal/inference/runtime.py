"""ONNX Runtime as Shoal uses it: on the processor, with so many threads and no words."""

import onnxruntime


def session_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """So many threads, no words on what is optimised, no memory kept for another day."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    return options


def new_session(model: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session on the processor."""
    return onnxruntime.InferenceSession(model, session_options(threads), providers=["CPUExecutionProvider"])
