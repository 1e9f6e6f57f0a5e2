"""Any PyTorch model with its products in MAC units, forward and backward.

Start with `emulate`. `interception` meets torch's functions, `ops` writes them as products, `contraction` is one
product with its gradients, `coverage` counts; `roles` knows neither torch nor numba.
"""
