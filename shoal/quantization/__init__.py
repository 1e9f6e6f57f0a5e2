"""Quantizers, quantization after and during training, and export to ONNX.

`read_zip` and `to_policy` are in `shoal.policies`; they are found here as well, as before version 0.2.
"""

from typing import TYPE_CHECKING

from shoal.lazy import lazy

if TYPE_CHECKING:
    from shoal.quantization.affine import Codes, codes, simulate
    from shoal.quantization.callback import QatCallback
    from shoal.quantization.ptq import ModelQuantizer, Plan, calibrate, model_bytes, quantized
    from shoal.quantization.qat import Qat
    from shoal.quantization.quantizer import Quantizer, Scheme
else:
    __getattr__ = lazy(
        __name__,
        dict.fromkeys(("Codes", "codes", "simulate"), "shoal.quantization.affine")
        | dict.fromkeys(("Quantizer", "Scheme"), "shoal.quantization.quantizer")
        | dict.fromkeys(("ModelQuantizer", "Plan", "calibrate", "model_bytes", "quantized"), "shoal.quantization.ptq")
        | dict.fromkeys(("read_zip", "to_policy"), "shoal.policies")
        | {"Qat": "shoal.quantization.qat", "QatCallback": "shoal.quantization.callback"},
    )

__all__ = [
    "Codes", "ModelQuantizer", "Plan", "Qat", "QatCallback", "Quantizer", "Scheme", "calibrate", "codes", "model_bytes",
    "quantized", "simulate",
]  # fmt: skip
