"""Number formats: floating-point, fixed-point and block formats, multiplier encodings, and their names.

Start with `types`; `notation` parses names, `encodings` holds CFG-1 to CFG-6 of the slides.
"""
