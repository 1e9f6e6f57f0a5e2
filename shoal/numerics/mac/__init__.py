"""Multiply-accumulate units: what they are, what they compute, and matrix products through them.

Start with `unit` and `datapath`, then `exact`, the definition in exact fractions, then `matmul`. `kernels` has loops
for any unit, `tile_kernels` the fast ones; `plan` and `tiles` turn a unit into their parameters.
"""
