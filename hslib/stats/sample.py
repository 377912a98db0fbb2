"""One stored sample's numbers, in one pass over its bytes.

A few tokens at a time become float32 in a buffer that fits into a core's cache; everything is
computed there. 29 MB cost about 15 ms of one core.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from hslib.stats.coherence import Sketch, Sketcher
from hslib.stats.moments import Floats
from hslib.store import StoredSample

if TYPE_CHECKING:
    import torch

_VALUES_AT_ONCE = 16 * 4 * 7168  # 1.8 MB of float32
_MEDIAN_TOKENS = 8
MASSIVE_RATIO = 1000.0  # Sun et al. 2024, "Massive Activations in LLMs", section 2


@dataclass(frozen=True)
class Massive:
    """Values beyond ``MASSIVE_RATIO`` times the median magnitude of their state; arrays [N]."""

    state: np.ndarray
    position: np.ndarray
    dimension: np.ndarray
    value: np.ndarray
    ratio: np.ndarray


@dataclass(frozen=True, eq=False)
class SampleNumbers:
    """What one sample adds to the statistics of the store; arrays by state are [L].

    ``norms`` float32 [T, L]: L2 norms of tokens. ``powers`` [5, L]: how many finite values, and the
    sums of their powers 1 to 4. ``layer_cosine`` float64 [L, L]: cosine of
    every two states, summed over tokens. ``adjacent_cosine``: cosine of neighbouring tokens,
    summed over the T-1 pairs. ``repeated``: tokens whose state equals the token before's bit for
    bit. ``same_as_next``: the state equals the next state bit for bit. ``picked`` uint16
    [N, L, H]: bf16 bits of the tokens drawn for the spectrum. ``states_hash``: xxh3-64 over the
    states' bytes.
    """

    index: int
    norms: np.ndarray
    powers: Floats
    layer_cosine: Floats
    adjacent_cosine: Floats
    non_finite: np.ndarray
    repeated: np.ndarray
    same_as_next: np.ndarray
    massive: Massive
    picked: np.ndarray
    sketch: Sketch
    mask_tokens: int
    states_hash: str


def measure_sample(
    sample: StoredSample, positions: np.ndarray, sketcher: Sketcher
) -> SampleNumbers:
    """Read one sample once.

    Args:
        positions: tokens to keep for the spectrum.
        sketcher: keeps the few states that are later compared with other samples'.
    """
    import torch

    states = sample.hidden_states
    tokens, count, hidden = states.shape
    rows = max(1, _VALUES_AT_ONCE // (count * hidden))
    bits = states.view(torch.int16).numpy().view(np.uint16)
    sums = _Sums(tokens, count, hidden, min(rows, tokens))
    states_hash = xxhash.xxh3_64()
    for start in range(0, tokens, rows):
        states_hash.update(bits[start : start + rows].data)
        sums.add(states[start : start + rows], start)
    values = (tokens * hidden - sums.non_finite).astype(np.float64)
    norms, cosine = sums.norms_and_cosine()
    pairs = _adjacent(sums.adjacent, norms)
    return SampleNumbers(
        index=sample.index,
        norms=norms.astype(np.float32),
        powers=np.stack([values, *sums.powers]),
        layer_cosine=cosine,
        adjacent_cosine=pairs.sum(axis=0),
        non_finite=sums.non_finite,
        repeated=_repeated(bits, pairs),
        same_as_next=_same_as_next(bits, cosine / max(tokens, 1)),
        massive=_massive(sample, bits),
        picked=bits[positions],
        sketch=sketcher.sketch(sample.input_ids.numpy(), states[:, 0]),
        mask_tokens=int(sample.loss_mask.sum()),
        states_hash=states_hash.hexdigest(),
    )


class _Sums:
    """Sums over one sample's tokens: float32 within a token, float64 over tokens."""

    def __init__(self, tokens: int, count: int, hidden: int, rows: int) -> None:
        import torch

        self.gram = np.empty((tokens, count, count))
        self.adjacent = np.empty((max(tokens - 1, 0), count))
        self.powers = np.zeros((4, count))
        self.non_finite = np.zeros(count, dtype=np.int64)
        self._buffer = torch.empty(rows + 1, count, hidden)  # row 0 is the token before
        self._square = torch.empty(rows, count, hidden)

    def add(self, states: "torch.Tensor", start: int) -> None:
        """Add the tokens from ``start`` on, bf16 [t, L, H]."""
        import torch

        n = len(states)
        values = self._buffer[1 : n + 1]
        values.copy_(states)
        sums = self._power_sums(values, self._square[:n], start)
        if not sums.isfinite().all():  # NaN, inf, or too large for fourth powers in float32
            self._zero_non_finite(values)
            sums = self._power_sums(values.double(), self._square[:n].double(), start)
        self.powers += sums.sum(dim=1, dtype=torch.float64).numpy()
        self._buffer[0].copy_(self._buffer[n])

    def _zero_non_finite(self, values: "torch.Tensor") -> None:
        """Count NaN and infinities, and put 0 in their place."""
        self.non_finite += (~values.isfinite()).sum(dim=(0, 2)).numpy()
        values.nan_to_num_(0.0, 0.0, 0.0)

    def _power_sums(
        self, values: "torch.Tensor", square: "torch.Tensor", start: int
    ) -> "torch.Tensor":
        """Sums of powers 1 to 4 over the hidden size, [4, t, L].

        Also fills in Gram matrices and dot products of neighbours.
        """
        import torch

        n, dot = len(values), torch.linalg.vecdot
        self.gram[start : start + n] = torch.bmm(values, values.transpose(1, 2)).numpy()
        torch.mul(values, values, out=square)
        first = 1 if start == 0 else 0  # the first token has no neighbour before it
        pairs = self._buffer[first : n + 1].to(values.dtype)
        self.adjacent[start - 1 + first : start - 1 + n] = dot(pairs[1:], pairs[:-1]).numpy()
        squares = self.gram[start : start + n].diagonal(axis1=1, axis2=2)
        sums = (values.sum(2), dot(square, values), dot(square, square))
        return torch.stack([sums[0], torch.from_numpy(squares.copy()).to(sums[0]), *sums[1:]])

    def norms_and_cosine(self) -> tuple[Floats, Floats]:
        """Token norms [T, L], and the cosine of every two states summed over tokens [L, L]."""
        norms = np.sqrt(np.einsum("tll->tl", self.gram))
        inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
        return norms, np.einsum("tij,ti,tj->ij", self.gram, inverse, inverse, optimize=True)


def _adjacent(products: Floats, norms: Floats) -> Floats:
    """Cosine of each token's state with the one before, [T-1, L]; 0 where a state is zero."""
    lengths = norms[1:] * norms[:-1]
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def _repeated(bits: np.ndarray, pairs: Floats) -> np.ndarray:
    """Tokens whose state equals the one before, [L]; only those of cosine 1 are compared."""
    at, state = np.nonzero(pairs > 1 - 1e-5)
    same = [np.array_equal(bits[t, s], bits[t + 1, s]) for t, s in zip(at, state, strict=True)]
    found = np.bincount(state, weights=np.asarray(same, float), minlength=pairs.shape[1])
    return found.astype(np.int64)


def _same_as_next(bits: np.ndarray, mean_cosine: Floats) -> np.ndarray:
    """Whether a state equals the next state, bool [L]; False for the last."""
    count = bits.shape[1]
    likely = [s + 1 < count and mean_cosine[s, s + 1] > 1 - 1e-5 for s in range(count)]
    return np.array(
        [likely[s] and np.array_equal(bits[:, s], bits[:, s + 1]) for s in range(count)]
    )


def _massive(sample: StoredSample, bits: np.ndarray) -> Massive:
    """Values beyond ``MASSIVE_RATIO`` times the median over ``_MEDIAN_TOKENS`` tokens.

    A state is read only if the server's absmax allows such a value.
    """
    import torch

    found: list[np.ndarray] = []
    at = np.unique(np.linspace(0, len(bits) - 1, _MEDIAN_TOKENS).astype(int))
    stride = max(1, bits.shape[2] // 1024)  # 8,192 values tell a median within 2 %
    for state in range(bits.shape[1]):
        magnitudes = (bits[at, state, ::stride] & 0x7FFF).ravel().astype(np.int16)
        middle = np.partition(magnitudes, len(magnitudes) // 2)[len(magnitudes) // 2]
        median = float(torch.from_numpy(np.array([middle])).view(torch.bfloat16)[0])
        threshold = median * MASSIVE_RATIO
        if threshold == 0.0 or not _may_exceed(sample, state, threshold):
            continue
        values = sample.hidden_states[:, state]
        rows = np.flatnonzero((values.abs().amax(dim=1) > threshold).numpy())
        large = values[torch.from_numpy(rows)].float().numpy()
        row, dimension = np.nonzero((np.abs(large) > threshold) & np.isfinite(large))
        value = large[row, dimension]
        columns = (np.full(len(row), state), rows[row], dimension, value, np.abs(value) / median)
        found.append(np.stack([column.astype(np.float64) for column in columns]))
    table = np.concatenate(found, axis=1) if found else np.empty((5, 0))
    return Massive(*table[:3].astype(np.int64), *table[3:])


def _may_exceed(sample: StoredSample, state: int, threshold: float) -> bool:
    """Whether the server's absmax in the journal exceeds it; True where there is none."""
    layers = sample.entry.layers
    absmax = layers[state].get("absmax") if state < len(layers) else None
    return absmax is None or absmax > threshold
