"""ONNX Runtime as Shoal uses it: sessions on the CPU, a given number of threads, no log messages and no telemetry.

Other modules import onnxruntime from here: its telemetry starts with the import (a device ID and a database in the
user's cache, and uploads to Microsoft), and only this variable prevents that.
`audit` counts how much of a model it multiplies in 8 bits, in the optimised graph that it runs.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from shoal.errors import UserError

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

onnxruntime.disable_telemetry_events()  # if it was imported before

INT8 = {
    "ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "QLinearConv",
    "QLinearMatMul",
}  # fmt: skip
FLOAT = {"Conv", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"}


def session_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """Session options: this many threads, no log messages, no memory arena."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # errors are raised
    return options


def new_session(model: bytes, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    options = options or session_options()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def reason(error: Exception) -> str:
    """ONNX Runtime's error message without its codes."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.split(" : ")[-1].strip()[:160].rstrip(".: ")


@dataclass(frozen=True)
class Audit:
    """Multiplications for one state."""

    int8: int  # multiplications in 8 bits
    all: int
    nodes: dict[str, int]  # number of multiplying nodes by operator

    @property
    def share(self) -> float:
        """Share of the multiplications that run in 8 bits."""
        return self.int8 / self.all if self.all else 0.0


def audit(model: bytes, positions: tuple[int, ...] = ()) -> Audit:
    """Optimise the model with ONNX Runtime and count; `positions` are the output positions of each convolution."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # no layouts
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        try:
            new_session(model, options)
            graph = onnx.load(options.optimized_model_filepath).graph
        except Exception as error:  # ONNX Runtime raises a dozen exception types of its own
            raise UserError(
                f"The policy cannot be checked in the temporary folder '{folder}': {reason(error)}."
            ) from None
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    places = iter(positions)
    int8 = every = 0
    nodes: dict[str, int] = {}
    for node in graph.node:
        if node.op_type not in INT8 | FLOAT:
            continue
        shape = max(_weights(node, sizes, makers), key=math.prod, default=())
        if len(shape) < 2 or (node.op_type == "MatMul" and shape[-2] == 1):  # the product of two scales
            continue
        products = math.prod(shape) * (next(places, 1) if "Conv" in node.op_type else 1)
        nodes[node.op_type] = nodes.get(node.op_type, 0) + 1
        every += products
        int8 += products if node.op_type in INT8 else 0
    return Audit(int8, every, nodes)


def _weights(
    node: onnx.NodeProto, sizes: dict[str, tuple[int, ...]], makers: dict[str, onnx.NodeProto]
) -> Iterator[tuple[int, ...]]:
    """Shapes of a product's constant operands, including those behind nodes that only convert them."""
    for name in node.input:
        if name in sizes:
            yield sizes[name]
        elif name in makers and makers[name].op_type in ("Cast", "DequantizeLinear"):
            yield from (sizes[part] for part in makers[name].input if part in sizes)
