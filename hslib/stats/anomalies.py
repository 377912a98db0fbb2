"""Samples unlike the others: every anomaly names a sample, a state and the reason.

A score is the distance from the median, in units of 1.4826 times the median absolute deviation
(a normal distribution's standard deviation). The unit has a floor: among nearly equal samples
the smallest difference is no anomaly.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hslib.stats.coherence import Coherence, Sketch
from hslib.store import Entry

if TYPE_CHECKING:
    import pandas

FAR = 8.0  # robust standard deviations
_MIN_SAMPLES = 8  # fewer say nothing of what is usual
_NAMED = 100  # foreign samples among which the states' owners are searched
_COHERENT = 0.3  # below this median score, states say nothing of their ids


@dataclass(frozen=True)
class Anomaly:
    """``state`` is "" where all are concerned; ``score`` NaN where nothing is scored."""

    index: int
    state: str
    reason: str
    detail: str
    score: float = float("nan")


@dataclass(frozen=True)
class Feature:
    """A number per sample and state, and how it is compared; ``floor``: the least spread."""

    column: str
    words: str
    logarithmic: bool
    floor: float


# At the floors, FAR is a factor of 1.7 in norm, 16 in absmax (one rare token is enough for 4 in a
# sound sample), 0.08 in zeros, 0.4 in cosine.
FEATURES = (
    Feature("median_l2", "median token norm", True, 0.1),
    Feature("absmax", "largest magnitude", True, 0.5),
    Feature("zero_share", "share of zeros", False, 0.01),
    Feature("adjacent_cosine", "cosine of neighbouring tokens", False, 0.05),
)


def robust_scores(values: np.ndarray, floor: float) -> np.ndarray:
    """Signed distance of each value from the median in robust standard deviations. Pure."""
    middle = np.nanmedian(values)
    spread = 1.4826 * np.nanmedian(np.abs(values - middle))
    return np.asarray((values - middle) / max(spread, floor))


def outside(values: np.ndarray, scores: np.ndarray, floor: float) -> np.ndarray:
    """Which values are far off *and* clear of the middle 90 % of all. Pure.

    The second condition spares large groups: rows with a massive token differ from rows without
    one, and a third of all rows may have one.
    """
    low = np.quantile(values, 0.05, method="higher")
    high = np.quantile(values, 0.95, method="lower")
    clear = np.maximum(values - high, low - values) > FAR * floor / 2
    return np.asarray((np.abs(scores) > FAR) & clear)


def find_outliers(samples: "pandas.DataFrame") -> Iterator[Anomaly]:
    """Samples far outside the others of the same state."""
    for (state, table), feature in (
        (group, feature) for group in samples.groupby("state", sort=False) for feature in FEATURES
    ):
        values = table[feature.column].to_numpy(float)
        known = np.isfinite(values) & ((values > 0) | (not feature.logarithmic))
        if known.sum() < _MIN_SAMPLES:
            continue
        scale = np.log2(values[known]) if feature.logarithmic else values[known]
        scores = robust_scores(scale, feature.floor)
        typical = float(np.median(values[known]))
        indices = table["index"].to_numpy()[known]
        for at in np.flatnonzero(outside(scale, scores, feature.floor)):
            detail = (
                f"{feature.words} {values[known][at]:.3g}, the samples' median is {typical:.3g}"
            )
            yield Anomaly(int(indices[at]), str(state), "far off", detail, float(scores[at]))


def find_defects(samples: "pandas.DataFrame") -> Iterator[Anomaly]:
    """What is wrong in itself: non-finite, constant, or repeated values."""
    for row in samples.itertuples():
        index, state = int(row.index), str(row.state)
        if row.non_finite:
            yield Anomaly(index, state, "non-finite", f"{row.non_finite} values are NaN or inf")
        if row.std <= 1e-3 * abs(row.mean) or row.std == 0:
            yield Anomaly(index, state, "constant", f"every value is about {row.mean:.3g}")
        if row.same_as_next:
            detail = "every value equals the next state's: one layer stored twice"
            yield Anomaly(index, state, "layer twice", detail)
        if row.repeated > max(1, 0.02 * row.num_tokens):
            detail = f"{row.repeated} tokens have the state of the token before, bit for bit"
            yield Anomaly(index, state, "rows repeated", detail)
        if abs(row.measured_l2 / row.mean_l2 - 1) > 0.01 if row.mean_l2 > 0 else False:
            detail = f"mean norm {row.measured_l2:.4g}, but the server measured {row.mean_l2:.4g}"
            yield Anomaly(index, state, "not what was dumped", detail)


def find_same_states(hashes: Mapping[int, str], entries: Mapping[int, Entry]) -> Iterator[Anomaly]:
    """Equal states filed under different ids. Equal ids with equal states are no anomaly."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, states_hash in hashes.items():
        groups[states_hash].append(index)
    for group in groups.values():
        first, *others = group
        for index in others:
            if entries[index].digest != entries[first].digest:
                detail = f"the same states as sample {first}, which has other ids"
                yield Anomaly(index, "", "same states", detail)


def find_foreign_states(indices: Sequence[int], sketches: Sequence[Sketch]) -> Iterator[Anomaly]:
    """Samples whose states do not fit their ids, with the sample whose ids they fit.

    Rows that share most of their ids, such as short ones of one template, can't be told apart.
    """
    store = Coherence(sketches)
    found = store.scores()
    known = np.isfinite(found)
    if known.sum() < _MIN_SAMPLES or np.median(found[known]) < _COHERENT:
        return
    scores = np.full(len(found), np.nan)
    scores[known] = robust_scores(found[known], 0.03)
    typical = float(np.median(found[known]))
    foreign = [int(at) for at in np.flatnonzero(scores < -FAR)]
    for at in foreign:
        detail = (
            f"its first state's similarity to that of the same ids in other samples is "
            f"{found[at]:.2f}, the samples' median is {typical:.2f}"
        )
        same_length = [
            other
            for other in foreign[:_NAMED]
            if other != at and len(sketches[other].ids) == len(sketches[at].ids)
        ]
        owner = [other for other in same_length if store.score(at, other) > 0.7 * typical]
        if owner:
            detail += f"; it fits the ids of sample {indices[owner[0]]}"
        yield Anomaly(indices[at], "", "foreign states", detail, float(scores[at]))
