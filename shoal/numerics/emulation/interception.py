"""Interception of torch's functions: known ones are replaced, and no other multiplication goes unnoticed.

It uses two of torch's modes. `Functions` sees Python calls (F.linear, x @ y) above autograd, and replaces them with
emulated products that have their own gradients. `Net` sees every kernel below autograd, including those called by C++,
TorchScript or the autograd engine: a kernel that multiplies and accumulates and gets there has escaped emulation.
"""

import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shoal.numerics.emulation.contraction import check_once
from shoal.numerics.emulation.ops import OPS
from shoal.numerics.emulation.roles import here

if TYPE_CHECKING:
    from shoal.numerics.emulation.emulate import Emulation

NORMALISATIONS = frozenset(("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "native_layer_norm"))
ACTIVATIONS = frozenset(
    "relu relu6 leaky_relu gelu silu mish elu selu celu hardtanh hardswish tanh sigmoid hardsigmoid softplus softmax "
    "log_softmax".split()
)
"""Functions of torch, by their names in its C++ code."""
UNSEEN = {"linalg_vecdot", "cosine_similarity"}
"""Functions that multiply and accumulate in kernels whose names do not show it."""

MULTIPLIES = re.compile(
    r"(^|_)(mm|bmm|smm|addmm|addbmm|baddbmm|hspmm|sspaddmm|mv|addmv|addr|dot|vdot|matmul|q?linear|bilinear|trilinear)(_|$)"
    r"|conv(?!ert)|attention|lstm|gru_|gru$|rnn|cdist|pdist|euclidean_dist|_fft_|cholesky|lstsq|matrix_exp"
    r"|linalg_(?!vector_norm|cross|diagonal|_powsum|check_errors)"
    r"|lu_solve|lu_with_info|triangular_solve|spsolve|orgqr|ormqr|geqrf|householder|per_sample_weights"
    r"|^_embedding_bag(_forward_only)?$"
)
"""Names of kernels that multiply and accumulate."""
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
"""Sums of embeddings: products only if the seventh argument gives weights."""

_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


class Functions(TorchFunctionMode):
    """Replaces the functions in `OPS`."""

    def __init__(self, emulation: "Emulation") -> None:
        super().__init__()
        self.emulation = emulation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch instead of `func`, with this mode disabled."""
        kwargs = kwargs or {}
        if here.mode is not self:
            return func(*args, **kwargs)
        body = _body(func)
        if body is not None:
            with self:  # torch function written in Python: intercept what it calls
                return body(*args, **kwargs)
        name = _name(func)
        if name in OPS or name.removesuffix("_") in OPS:
            return self._replaced(name, func, args, kwargs)
        if name in UNSEEN:
            return self._plain(name, func, args, kwargs, "cannot be written as matrix products")
        before, here.calling = here.calling, name
        try:
            return self._rounded(name, func, args, kwargs)
        finally:
            here.calling = before

    def _rounded(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The function, with the input of a normalisation or the output of an activation rounded."""
        casts = self.emulation.casts
        if casts is None:
            return func(*args, **kwargs)
        if name in NORMALISATIONS and args and isinstance(args[0], Tensor):
            return func(casts.straight("normalisation", name, args[0]), *args[1:], **kwargs)
        op = name.removesuffix("_")
        if op not in ACTIVATIONS or casts.scheme.activations is None:
            return func(*args, **kwargs)
        if op == name:
            return casts.straight("activations", op, func(*args, **kwargs))
        # In place, but on a copy: gradients need the result as it was before rounding.
        return args[0].copy_(casts.straight("activations", op, func(args[0].clone(), *args[1:], **kwargs)))

    def _replaced(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The emulated function, or the plain one if these operands cannot be emulated."""
        op, out = name.removesuffix("_"), kwargs.pop("out", None)
        why = _unfit(args, kwargs)
        if op == "einsum" and len([*_tensors((*args, *kwargs.values()))]) == 1:
            return func(*args, **kwargs)  # not a product
        if why:
            return self._plain(op, func, args, kwargs if out is None else kwargs | {"out": out}, why)
        if not torch.is_grad_enabled():
            carry_over(self.emulation, op)
        result = OPS[op](self.emulation.times(op), *args, **kwargs)
        if op != name:
            return args[0].copy_(result)
        return result if out is None else out.resize_(result.shape).copy_(result)

    def _plain(self, op: str, func: Any, args: Any, kwargs: Any, why: str) -> Any:
        self.emulation.escaped(op, None, why)
        with standing_aside():
            return func(*args, **kwargs)


class Net(TorchDispatchMode):
    """Stops, or counts, kernels that multiply and accumulate in float32."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch instead of the kernel."""
        kwargs = kwargs or {}
        if here.mode is not self.functions or not _multiplies(func):
            return func(*args, **kwargs)
        emulation, name = self.functions.emulation, _name(func)
        if name in BAGS and args[6] is None:
            return func(*args, **kwargs)
        called = here.calling or name
        why = "has no emulation" if called == name else f"multiplies in {name}, which the emulation cannot reach"
        if torch._C._current_graph_task_id() >= 0:
            why = "is in the backward pass of something that ran forward outside the emulation"
        emulation.check(called, why)
        with standing_aside():
            result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        emulation.escaped(called, formula(*args, **kwargs, out_val=result) // 2 if formula else None, why)
        return result


@contextmanager
def standing_aside() -> Iterator[None]:
    """Suspend emulation."""
    before = here.mode, here.emulation
    here.mode = here.emulation = None
    try:
        yield
    finally:
        here.mode, here.emulation = before


def carry_over(emulation: "Emulation", op: str) -> None:
    """If a product is inside a custom autograd.Function, run that Function's backward in the emulation, too.

    Such a Function runs without autograd, so its products do not get our gradients. Its context, which is the node of
    autograd's graph, is the first argument of the frame that `Function.apply` called.
    """
    frame, inside = sys._getframe(1), None
    while frame is not None:
        if frame.f_code is _APPLY and inside is not None:
            first = inside.f_locals.get(next(iter(inside.f_code.co_varnames), ""))
            node = first[0] if isinstance(first, tuple) and first else first
            if isinstance(node, BackwardCFunction):
                _carry(emulation, node)
            elif any(isinstance(x, Tensor) and x.requires_grad for x in frame.f_locals.get("args", ())):
                name = frame.f_locals["cls"].__name__
                emulation.check(op, f"is in {name}.forward, which takes no ctx, so its backward cannot be found")
        frame, inside = frame.f_back, frame  # type: ignore[assignment]


def _carry(emulation: "Emulation", node: Any) -> None:
    if "apply" in vars(node):
        return
    reference = weakref.ref(node)  # a cycle would keep the graph alive

    def apply(*gradients: Any) -> Any:
        own = reference()
        check_once()
        with emulation:
            return type(own).apply(own, *gradients)  # type: ignore[union-attr]

    node.apply = apply


@lru_cache(maxsize=1024)
def _body(func: Any) -> Callable[..., Any] | None:
    """A torch function written in Python, without its check for overrides."""
    if not isinstance(func, FunctionType):
        return None
    asking = [name for name in func.__code__.co_names if name.startswith("has_torch") and name in func.__globals__]
    if not asking or "__class__" in func.__code__.co_freevars:  # super() would end up here again under the same name
        return None
    own = func.__globals__ | dict.fromkeys(asking, lambda *tensors: False)
    body = FunctionType(func.__code__, own, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _name(func: Any) -> str:
    """`matmul` for torch.matmul, Tensor.__matmul__, torch.linalg.matmul and torch.ops.aten.matmul.default."""
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        packet = func._overloadpacket if isinstance(func, torch._ops.OpOverload) else func
        return packet._qualified_op_name.removeprefix("aten::")
    name = str(getattr(func, "__name__", func))
    return {"__matmul__": "matmul", "linalg_matmul": "matmul"}.get(name, name)


@lru_cache(maxsize=4096)
def _multiplies(kernel: Any) -> bool:
    return MULTIPLIES.search(_name(kernel).rpartition(":")[2]) is not None


def _unfit(args: Any, kwargs: Any) -> str:
    """Why these operands cannot be emulated; empty if they can be."""
    for x in _tensors((*args, *kwargs.values())):
        if x.dtype != torch.float32 and x.dtype != torch.bool:
            return f"has an operand of {x.dtype}, not torch.float32"
        if x.layout != torch.strided or x.device.type != "cpu":
            return f"has an operand that is {x.layout} on {x.device}, not dense on the CPU"
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return "is inside vmap or another transform of torch.func"
    if forward_ad._current_level >= 0:
        return "is inside forward-mode differentiation"
    if torch.is_autocast_enabled("cpu"):
        return "is inside torch.autocast, which changes the precision"
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None:
        return "is inside checkpointing or other saved-tensor hooks, so it may be recomputed elsewhere"
    return ""


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def in_backward() -> bool:
    """Whether the autograd engine is running a backward pass without recording (as recomputation would)."""
    return torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled()
