"""Do a sample's states belong to its ids? Asked of the states alone, without the model.

Early in a model a token's state depends mostly on the token itself, so the states of one id
resemble each other across samples. States that were filed under other ids, or shifted by some
tokens, do not. Kept per sample: a few tokens of the first state, projected to a few random
directions (Johnson and Lindenstrauss), about 1 KB.
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


class Coherence:
    """Compares each sketch of a store with all others.

    It knows the mean state of each id over all sketches; before a sample is judged, the sample's
    own share is taken out of that mean. Needs twice the memory of the sketches.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self._sketches = sketches
        ids = np.concatenate([s.ids for s in sketches])
        states = np.concatenate([s.states for s in sketches]).astype(np.float32)
        self._centre, self._spread = states.mean(axis=0), states.std(axis=0) + 1e-6
        self._ids, where = np.unique(ids, return_inverse=True)
        self._counts = np.bincount(where)
        self._sums = np.zeros((len(self._ids), states.shape[1]))
        np.add.at(self._sums, where, self._standardise(states))

    def _standardise(self, states: np.ndarray) -> np.ndarray:
        return np.asarray((states.astype(np.float32) - self._centre) / self._spread)

    def scores(self) -> NDArray[np.float64]:
        """Mean cosine of each sample's states with other samples' states of the same ids.

        float64 [S]; NaN where fewer than ``MIN_TOKENS`` of its ids occur elsewhere.
        """
        return np.array([self.score(at, at) for at in range(len(self._sketches))])

    def score(self, states_of: int, ids_of: int) -> float:
        """How well one sample's states fit another's ids; both must have as many tokens."""
        own = self._sketches[ids_of]
        where = np.searchsorted(self._ids, own.ids)
        same = own.ids[:, None] == own.ids[None, :]
        sums = self._sums[where] - same.astype(np.float32) @ self._standardise(own.states)
        usable = self._counts[where] - same.sum(axis=0) > 0
        if usable.sum() < MIN_TOKENS:
            return float("nan")
        means = sums[usable]
        states = self._standardise(self._sketches[states_of].states)[usable]
        lengths = np.linalg.norm(states, axis=1) * np.linalg.norm(means, axis=1)
        cosines = np.einsum("td,td->t", states, means) / np.maximum(lengths, 1e-9)
        return float(cosines.mean())
