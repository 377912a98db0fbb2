"""Which tokens are witnessed, and how far their states are from what the layers read.

Witnessed are a request's first and last token in each forward pass, and some drawn at random. This
finds a state that is wrong for the whole request, or from some token on; one that is wrong for a
share p of the tokens with probability 1 - (1 - p)^drawn. A single wrong token among thousands is
found only if it was drawn.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from hs_dump.head import Head
from hs_dump.norms import Norm
from hs_dump.numbers import values_of
from hs_dump.proof import token_errors

TOKENS = 4  # of each request and pass


def pick_rows(start: int, count: int, tokens: int, draw: random.Random) -> list[int]:
    """Which of ``count`` rows from ``start`` on are witnessed, ascending; ``tokens`` 0 = all."""
    if not tokens or count <= tokens:
        return list(range(start, start + count))
    drawn = draw.sample(range(start + 1, start + count - 1), tokens - 2)
    return [start, *sorted(drawn), start + count - 1]


class Check(NamedTuple):
    """Compare one stored state with one tensor that was read.

    ``read``: ``[S, H]`` of the witnessed rows, or the server's logits ``[R, C]`` of ``rows``; None
    when it was not seen in this pass. ``by``: what turns the state into ``read``; None when the two
    are equal. ``is_entrance``: the other way round, the norm of ``read`` is the state.
    """

    state: int
    by: Norm | Head | None
    read: torch.Tensor | None
    quantisation: torch.Tensor | None = None
    scale: float = 1.0
    rows: list[int] | None = None  # among the witnessed rows; None = all
    is_entrance: bool = False


class Testimony(NamedTuple):
    """All checks of one forward pass."""

    checks: tuple[Check, ...]
    num_states: int

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that :meth:`errors` needs on the host."""
        found = [t for c in self.checks for t in (c.read, c.quantisation)]
        return [tensor for tensor in found if tensor is not None]

    def on_host(self, copies: Sequence[torch.Tensor]) -> "Testimony":
        """The same, with the copies of :meth:`tensors`."""
        left = list(copies)
        checks = []
        for check in self.checks:
            read = left.pop(0) if check.read is not None else None
            scale = left.pop(0) if check.quantisation is not None else None
            checks.append(check._replace(read=read, quantisation=scale))
        return self._replace(checks=tuple(checks))

    def errors(self, states: Sequence[np.ndarray]) -> np.ndarray:
        """The error of each witnessed row and state, float64 ``[S, L]``; NaN without a witness.

        Args:
            states: float32 ``[S, H]`` of each stored state, the rows as they are stored.
        """
        found = np.full((len(states[0]) if states else 0, self.num_states), np.nan)
        for check in self.checks:
            rows = check.rows if check.rows is not None else list(range(len(found)))
            error = _error(check, states[check.state][rows])
            found[rows, check.state] = np.fmax(found[rows, check.state], error)
        return found


def _error(check: Check, state: np.ndarray) -> np.ndarray:
    if check.read is None:
        return np.full(len(state), np.inf)  # the proven witness was not seen: not confirmed
    read = dequantised(check.read, check.quantisation)
    if isinstance(check.by, Head):
        return token_errors(check.by.logits(state * check.scale), read)
    if check.by is None:
        return token_errors(state * check.scale, read)
    if check.is_entrance:
        return token_errors(check.by.of(read), state)
    return token_errors(check.by.of(state) * check.scale, read)


def dequantised(value: torch.Tensor, scale: torch.Tensor | None) -> np.ndarray:
    """float32 rows of a module's input; a scale for all, per token, or per group of columns."""
    rows: np.ndarray = values_of(value.cpu())
    if scale is None:
        return rows
    wide = values_of(scale.cpu()).reshape(1, 1) if scale.numel() == 1 else values_of(scale.cpu())
    rows *= np.repeat(wide, rows.shape[1] // wide.shape[-1], axis=-1)
    return rows
