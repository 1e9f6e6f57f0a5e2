"""An observer that remembers what was said, and a crash at a chosen moment."""

from shoal.runs.observer import Observer


class Crash(BaseException):
    """The process is gone."""


class Witness(Observer):
    """Remembers what was said; with `until`, the run crashes at that episode, wherever it is."""

    def __init__(self, until=None):
        self.until, self.said = until, []

    def tell(self, sentence):
        self.said.append(sentence)

    def advance(self, training):
        if self.until is not None and training.episodes >= self.until:
            raise Crash
