"""The tokens that a draft with a smaller vocabulary may propose: the most frequent trained ones.

Both trainers use one format: draft id i stands for target id ``i + d2t[i]``, ascending, and
``t2d`` marks the target ids that have one. Only tokens whose loss mask is set are counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hslib.errors import ExportError

if TYPE_CHECKING:
    from hslib.store import Tokens


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """``d2t`` int64 [draft size], ``t2d`` bool [vocab size].

    ``coverage``: the share of the trained tokens that the draft can propose.
    """

    d2t: np.ndarray
    t2d: np.ndarray
    coverage: float


def count_tokens(samples: "Iterable[Tokens]") -> Counter[int]:
    """Target id -> how often it is trained, over all samples."""
    counts: Counter[int] = Counter()
    for sample in samples:
        trained = sample.input_ids.numpy()[sample.loss_mask.numpy() != 0]
        ids, numbers = np.unique(trained, return_counts=True)
        counts.update(dict(zip(ids.tolist(), numbers.tolist(), strict=True)))
    return counts


def vocabulary_map(counts: Mapping[int, int], draft_size: int, vocab_size: int) -> VocabularyMap:
    """The ``draft_size`` most frequent ids; ties and the remainder by lowest id. Pure.

    Raises:
        ExportError: a draft vocabulary larger than the model's.
    """
    if not 0 < draft_size <= vocab_size:
        raise ExportError(
            f"draft_vocab_size {draft_size} is not in 1..{vocab_size}",
            fix="choose a size up to the model's vocabulary; 32000 is customary for large ones",
        )
    by_count = sorted(counts, key=lambda token: (-counts[token], token))
    never = (token for token in range(vocab_size) if token not in counts)
    chosen = by_count[:draft_size]
    chosen += [token for token, _ in zip(never, range(draft_size - len(chosen)), strict=False)]
    ids = np.array(sorted(chosen), np.int64)
    t2d = np.zeros(vocab_size, bool)
    t2d[ids] = True
    total = sum(counts.values())
    covered = sum(counts.get(token, 0) for token in chosen)
    return VocabularyMap(ids - np.arange(draft_size), t2d, covered / total if total else 0.0)
