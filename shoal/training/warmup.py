"""Whether a run gets past its warm-up: until then it plays, but learns nothing."""

from shoal.envs.base import EnvSpec
from shoal.training.config import TrainConfig


class WarmUp:
    """Says once, as soon as it is clear, that a run ends before its first update."""

    def __init__(self, config: TrainConfig, spec: EnvSpec) -> None:
        self._episodes, self._copies = config.episodes, config.copies * max(1, config.actors)
        paced = config.actors and not config.lockstep  # by the rate limiter
        self._needed = config.warmup if paced else max(config.warmup, config.samples_per_update)
        self._most = _most(config, spec, self._copies)
        self._said = False

    def before(self) -> str | None:
        """A sentence before the start, if no episode can be long enough."""
        return None if self._most is None else self._sentence(self._most, "ends after at most", "will be")

    def so_far(self, episodes: int, samples: int) -> str | None:
        """A sentence if episodes turn out to be too short; so far no update was made.

        Episodes under way count among the samples, so that early on too many are expected rather than too few.
        """
        if self._said or episodes < min(2 * self._copies, self._episodes / 2):
            return None
        over = episodes >= self._episodes
        expected = samples if over else samples * self._episodes // episodes
        return self._sentence(expected, "ended after" if over else "ends after about", "was" if over else "will be")

    def _sentence(self, samples: int, ends: str, was: str) -> str | None:
        if samples >= self._needed:
            return None
        self._said = True
        return (
            f"Nothing {was} learned: the run {ends} {samples:,} samples, before the warm-up of "
            f"{self._needed:,}; set --warmup or --episodes."
        )


def _most(config: TrainConfig, spec: EnvSpec, copies: int) -> int | None:
    """Upper bound of the samples of the run; None: unknown."""
    if spec.episode_length is not None:  # with staggered first episodes, which are not counted
        return (config.episodes + 2 * copies) * spec.episode_length
    if spec.stated_length is not None:
        return (config.episodes - 1 + copies) * spec.stated_length
    return None
