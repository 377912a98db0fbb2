"""Do a sample's states belong to its ids? Asked of the states alone, without the model.

Early in a model a token's state depends mostly on the token itself. So the states of one id
in different samples resemble each other, and a sample whose states were filed under other ids,
or shifted by some rows, resembles nobody. Kept per sample: a few tokens of the first state,
projected to a few random directions (Johnson and Lindenstrauss), about 1 KB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

_TOKENS, _DIRECTIONS = 32, 16
_FIRST = 4  # attention sinks have states of their own kind
MIN_TOKENS = 4  # a score of fewer says nothing


@dataclass(frozen=True, eq=False)
class Sketch:
    """``ids`` int32 [n] and ``states`` float16 [n, 16] of a few tokens; n may be 0."""

    ids: np.ndarray
    states: np.ndarray


class Sketcher:
    """Makes sketches of one store; the random directions are fixed by the seed."""

    def __init__(self, hidden_size: int, seed: int) -> None:
        import torch

        rng = np.random.default_rng((seed, hidden_size))
        directions = rng.standard_normal((hidden_size, _DIRECTIONS)).astype(np.float32)
        self._directions = torch.from_numpy(directions)

    def sketch(self, input_ids: np.ndarray, states: "torch.Tensor") -> Sketch:
        """Sketch ids [T] and their states bf16 [T, H] at fixed positions of that length."""
        import torch

        first = _FIRST if len(input_ids) > _FIRST + MIN_TOKENS else 0
        at = np.unique(np.linspace(first, len(input_ids) - 1, _TOKENS).astype(np.int64))
        rows = states[torch.from_numpy(at)].float()
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        small = rows @ self._directions / lengths  # NaN where a state is zero or not finite
        return Sketch(input_ids[at].astype(np.int32), small.nan_to_num(0.0).half().numpy())


@dataclass(frozen=True, eq=False)
class Coherence:
    """``score`` float64 [S]: mean cosine of a sample's states with other samples' states of the
    same ids, NaN where fewer than ``MIN_TOKENS`` of its ids occur elsewhere. ``tokens`` int64
    [S]: how many were compared."""

    score: NDArray[np.float64]
    tokens: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Dictionary:
    """Mean state of each id over all sketches: what a state is held against."""

    ids: np.ndarray  # ascending
    sums: np.ndarray  # [I, D]
    counts: np.ndarray  # [I]
    centre: np.ndarray  # [D]
    spread: np.ndarray  # [D]

    def standardise(self, states: np.ndarray) -> np.ndarray:
        return np.asarray((states.astype(np.float32) - self.centre) / self.spread)


def score_all(sketches: Sequence[Sketch]) -> Coherence:
    """Hold every sample against all others. Pure; memory is that of the sketches, twice."""
    known = _dictionary(sketches)
    pairs = [_score(known, own, own) for own in sketches]
    return Coherence(
        np.array([score for score, _ in pairs]), np.array([n for _, n in pairs], dtype=np.int64)
    )


def fits_ids_of(sketches: Sequence[Sketch], states_of: int, ids_of: int) -> float:
    """How well one sample's states fit another's ids: both must have the same length."""
    known = _dictionary(sketches)
    crossed = Sketch(sketches[ids_of].ids, sketches[states_of].states)
    return _score(known, crossed, sketches[ids_of])[0]


def _dictionary(sketches: Sequence[Sketch]) -> _Dictionary:
    ids = np.concatenate([s.ids for s in sketches]) if sketches else np.empty(0, np.int32)
    states = np.concatenate([s.states for s in sketches]) if sketches else np.empty((0, 1))
    states = states.astype(np.float32)
    centre = states.mean(axis=0) if len(states) else np.zeros(states.shape[1])
    spread = states.std(axis=0) + 1e-6 if len(states) else np.ones(states.shape[1])
    unique, where = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(unique), states.shape[1]))
    np.add.at(sums, where, (states - centre) / spread)
    return _Dictionary(unique, sums, np.bincount(where, minlength=len(unique)), centre, spread)


def _score(known: _Dictionary, asked: Sketch, left_out: Sketch) -> tuple[float, int]:
    """Mean cosine of ``asked`` with the dictionary, the sample ``left_out`` taken out of it."""
    where = np.searchsorted(known.ids, asked.ids)
    own = left_out.ids[:, None] == asked.ids[None, :]  # [left out, asked]
    sums = known.sums[where] - own.T.astype(np.float32) @ known.standardise(left_out.states)
    others = known.counts[where] - own.sum(axis=0)
    usable = others > 0
    if usable.sum() < MIN_TOKENS:
        return float("nan"), int(usable.sum())
    states, means = known.standardise(asked.states)[usable], sums[usable]
    lengths = np.linalg.norm(states, axis=1) * np.linalg.norm(means, axis=1)
    cosines = np.einsum("td,td->t", states, means) / np.maximum(lengths, 1e-9)
    return float(cosines.mean()), int(usable.sum())
