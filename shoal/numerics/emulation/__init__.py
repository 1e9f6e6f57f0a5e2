"""Any PyTorch model with its matrix products through MAC units, forward and backward.

Start with `emulate`. `interception` catches torch's functions, `ops` writes them as products, `contraction` and
`convolution` are products with gradients, `coverage` counts; `roles` imports neither torch nor numba.
"""
