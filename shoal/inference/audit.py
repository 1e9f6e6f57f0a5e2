"""How much of a model ONNX Runtime multiplies in 8 bits, counted in the optimised graph that it runs."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from shoal.errors import UserError
from shoal.inference.runtime import new_session, onnxruntime, reason, session_options

INT8 = {
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
}
FLOAT = {"Conv", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"}


@dataclass(frozen=True)
class Audit:
    """Multiplications for one state."""

    int8: int
    """Multiplications in 8 bits."""
    all: int
    nodes: dict[str, int]
    """Number of multiplying nodes by operator."""

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
        shape = max(_weights(node, sizes, makers), key=_count, default=())
        if len(shape) < 2 or (node.op_type == "MatMul" and shape[-2] == 1):  # the product of two scales
            continue
        products = _count(shape) * (next(places, 1) if "Conv" in node.op_type else 1)
        nodes[node.op_type] = nodes.get(node.op_type, 0) + 1
        every += products
        int8 += products if node.op_type in INT8 else 0
    return Audit(int8, every, nodes)


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _weights(
    node: onnx.NodeProto, sizes: dict[str, tuple[int, ...]], makers: dict[str, onnx.NodeProto]
) -> Iterator[tuple[int, ...]]:
    """Shapes of a product's constant operands, including those behind nodes that only convert them."""
    for name in node.input:
        if name in sizes:
            yield sizes[name]
        elif name in makers and makers[name].op_type in ("Cast", "DequantizeLinear"):
            yield from (sizes[part] for part in makers[name].input if part in sizes)
