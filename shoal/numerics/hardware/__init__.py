"""What a MAC unit costs: LUTs and DSPs, energy and silicon, from the slides' tables and fits of them.

Start with `area`. `tables` are the slides' figures, `fits` speak between them, `report` makes tables for a person.
"""
