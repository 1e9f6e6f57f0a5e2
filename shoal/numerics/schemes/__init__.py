"""Training schemes: which number format each part of a training has, and training in it.

Start reading at `scheme.py`; `training.py` applies a scheme to a model and its optimizer.
"""
