"""Low-precision updates: what is kept of the weights and of the optimizer's state between two steps.

The optimizer computes in float32. Its new weights are rounded to the master's format. With a compensated update, the
difference u between the new weights and the old ones is added as Kahan does: y = round(u - c), t = round(w + y),
c = round(round(t - w) - y), w = t.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.numerics.schemes.casting import SchemeCasts
from shoal.numerics.schemes.scheme import Scheme


class Update:
    """Rounds weights and optimizer state after each step of an optimizer."""

    def __init__(self, scheme: Scheme, casts: SchemeCasts) -> None:
        self.master, self.state_cast, self.casts = scheme.master, scheme.state, casts
        self.compensated = scheme.update == "compensated"
        self._lost: dict[str, Tensor] = {}

    @torch.no_grad()
    def begin(self, parameters: Mapping[str, Tensor]) -> None:
        """Round the initial weights to the master's format."""
        if self.master is not None:
            for name, parameter in parameters.items():
                parameter.copy_(self._rounded(name, parameter))

    @torch.no_grad()
    def apply(
        self, parameters: Mapping[str, Tensor], state: Callable[[], Sequence[Tensor]], step: Callable[[], object]
    ) -> None:
        """Let the optimizer `step`, and round the parameters and its `state`, in place."""
        before = {name: one.clone() for name, one in parameters.items()} if self.compensated else {}
        step()
        if self.master is not None:
            for name, parameter in parameters.items():
                if self.compensated:
                    self._compensate(name, before[name], parameter)
                else:
                    parameter.copy_(self._rounded(name, parameter))
        if self.state_cast is not None:
            for tensor in state():
                tensor.copy_(self.casts.round("state", self.state_cast, "optimizer", tensor))
        self.casts.forget_weights()

    def _compensate(self, name: str, old: Tensor, parameter: Tensor) -> None:
        lost = self._lost.setdefault(name, torch.zeros_like(old))
        change = self._rounded(name, (parameter - old) - lost)
        new = self._rounded(name, old + change)
        lost.copy_(self._rounded(name, self._rounded(name, new - old) - change))
        parameter.copy_(new)

    def _rounded(self, name: str, x: Tensor) -> Tensor:
        assert self.master is not None
        return self.casts.round("master", self.master, name.removesuffix(".weight"), x)

    def state(self) -> dict[str, Tensor]:
        """What compensated updates remember."""
        return {f"lost.{name}": lost for name, lost in self._lost.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self._lost = {
            key.removeprefix("lost."): value.clone() for key, value in state.items() if key.startswith("lost.")
        }
