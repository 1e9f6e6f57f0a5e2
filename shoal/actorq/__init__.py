"""Quantized actors beside a full-precision learner: processes, shared memory, and the rate limiter between them."""
