"""The claims about low-precision formats in MAC units."""
