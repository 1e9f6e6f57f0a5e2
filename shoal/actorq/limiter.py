"""How fast the learner may learn from what the actors insert, and the actors insert before the learner has learned.

Two published mechanisms, separately named. `samples_per_insert` holds samples / inserts at a ratio, within an error
buffer, by making whichever side is ahead wait (Reverb's SampleToInsertRatio). `max_times_sampled` retires single rows:
see `shoal.replay`.
"""

import math

from shoal.errors import UserError


class RateLimiter:
    """diff = inserts * ratio - samples stays within ratio * min_size ± error_buffer, once min_size rows are in."""

    def __init__(self, ratio: float, min_size: int, error_buffer: float) -> None:
        self.ratio, self.min_size = ratio, min_size
        self.low, self.high = ratio * min_size - error_buffer, ratio * min_size + error_buffer
        self.inserts = self.samples = 0

    @property
    def binding(self) -> bool:
        """Whether it holds a ratio; with an infinite error buffer nobody waits."""
        return math.isfinite(self.high)

    def may_insert(self, count: int) -> bool:
        """Whether so many more transitions may go in."""
        if self.inserts < self.min_size:  # nothing may be sampled yet: to wait would be to wait forever
            return True
        return (self.inserts + count) * self.ratio - self.samples <= self.high

    def may_sample(self, count: int) -> bool:
        """Whether so many more transitions may be drawn."""
        return self.inserts >= self.min_size and self.inserts * self.ratio - self.samples - count >= self.low

    @property
    def achieved(self) -> float | None:
        """Samples per insert since the first min_size rows; None before the first sample."""
        after = self.inserts - self.min_size
        return self.samples / after if self.samples and after > 0 else None


def least_buffer(ratio: float, batch: int, chunk: int) -> float:
    """The smallest error buffer with which neither side can wait forever.

    Samples are taken by whole batches and inserts come in chunks: with a narrower band there is a point at which a
    batch is too many and a chunk is too many as well.
    """
    return (batch + chunk * ratio) / 2 + max(1.0, ratio)


def check_pace(
    ratio: float,
    error_buffer: float | None,
    batch: int,
    chunk: int,
    min_size: int,
    max_times: int | None,
    capacity: int,
) -> float:
    """The error buffer to use; a `UserError` for settings with which learner and actors would wait for each other."""
    if max_times is not None and ratio > max_times:
        raise UserError(
            f"`samples_per_insert` is {ratio:g}, but `max_times_sampled={max_times}` lets no row be drawn that often: "
            "the learner would wait forever."
        )
    if min_size > capacity:
        raise UserError(
            f"`warmup` is {min_size:,}, but the replay ring of this run holds at most {capacity:,}: learning would "
            "never begin; set `warmup`, `episodes` or `capacity`."
        )
    least = least_buffer(ratio, batch, chunk)
    if error_buffer is None:
        return max(0.1 * min_size * ratio, least)
    if error_buffer < least:
        raise UserError(
            f"`error_buffer` is {error_buffer:g}, but with batches of {batch:,} and chunks of {chunk:,} it must be at "
            f"least {least:g}: learner and actors would wait for each other."
        )
    return error_buffer
