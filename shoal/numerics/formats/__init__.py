"""What a narrow number can be: floating, fixed-point and block formats, the multipliers' encodings, and their names.

Start with `types`; `notation` reads and writes names, `encodings` are CFG-1 to CFG-6 of the slides.
"""
