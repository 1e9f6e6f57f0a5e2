"""Hardware cost of MAC units: LUTs and DSPs, energy and silicon area, from the slides' tables and fits of them.

Start with `area` and `energy`. `tables` holds the slides' figures, `fits` interpolates between them, `report` formats
the result.
"""
