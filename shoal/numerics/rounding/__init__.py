"""Rounding to narrow number formats.

Start with `exact`, the definition in exact fractions, then `quantize`. `plan` turns a format and its rules into numbers
for the compiled loops (`kernels`) and for `tensors`, the same in plain torch.
"""
