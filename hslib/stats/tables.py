"""The numbers of a pass as pandas tables. A state is "boundary 31" or "final".

Norms are L2 norms of one token's state. ``absmax``, ``mean_l2``, ``zero_share``, ``witness`` of a
sample are what the server measured when it dumped the states; the rest is computed from the
store's bytes. ``witness``: the largest error between a state and what its layer read; NaN
without one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import numpy as np

from hslib.stats.anomalies import Anomaly
from hslib.stats.moments import moments
from hslib.stats.sample import SampleNumbers
from hslib.stats.totals import Spectrum, Totals
from hslib.store import Entry

if TYPE_CHECKING:
    import pandas

_QUANTILES = np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
_NUMBERS = (
    "num_tokens",
    "mean",
    "std",
    "kurtosis",
    "median_l2",
    "measured_l2",
    "adjacent_cosine",
    "non_finite",
    "repeated",
    "same_as_next",
    "mean_l2",
    "absmax",
    "zero_share",
    "witness",
)
_OF_SERVER = _NUMBERS[-4:]  # measured by the server


def sample_numbers(sample: SampleNumbers, entry: Entry) -> np.ndarray:
    """One sample's part of the table of samples: float64 [L, columns], without names."""
    count = len(sample.non_finite)
    pairs = entry.num_tokens - 1
    of_server = [[layer.get(name) for name in _OF_SERVER] for layer in entry.layers]
    values = moments(sample.powers)
    measured = (
        np.full(count, entry.num_tokens),
        values.mean,
        values.std,
        values.kurtosis,
        np.median(sample.norms, axis=0),
        sample.norms.mean(axis=0, dtype=np.float64),
        sample.adjacent_cosine / pairs if pairs else np.full(count, np.nan),
        sample.non_finite,
        sample.repeated,
        sample.same_as_next,
    )
    numbers = np.full((count, len(_NUMBERS)), np.nan)
    numbers[:, : len(measured)] = np.stack(measured, axis=1)
    if of_server:
        numbers[: len(of_server), len(measured) :] = np.array(of_server, float)  # None -> NaN
    return numbers


def samples(
    lines: Sequence[np.ndarray], indices: Sequence[int], states: Sequence[str]
) -> "pandas.DataFrame":
    """A line per sample and state: ``index, state`` and the columns of ``_NUMBERS``."""
    import pandas

    frame = pandas.DataFrame(np.concatenate(lines), columns=list(_NUMBERS))
    frame.insert(0, "index", np.repeat(np.asarray(indices, np.int64), len(states)))
    frame.insert(1, "state", list(states) * len(lines))
    counts = ("num_tokens", "non_finite", "repeated")
    return frame.astype({**dict.fromkeys(counts, "int64"), "same_as_next": bool})


def masks(
    indices: Sequence[int], num_tokens: Sequence[int], mask_tokens: Sequence[int]
) -> "pandas.DataFrame":
    """``index, num_tokens, mask_tokens, coverage``: what the loss sees of each sample."""
    import pandas

    columns = {"index": indices, "num_tokens": num_tokens, "mask_tokens": mask_tokens}
    table = pandas.DataFrame(columns, dtype="int64")
    return table.assign(coverage=table["mask_tokens"] / table["num_tokens"].clip(lower=1))


def layers(
    totals: Totals,
    samples: "pandas.DataFrame",
    states: Sequence[str],
    spectra: Sequence[Spectrum],
) -> "pandas.DataFrame":
    """A line per state."""
    import pandas

    by_state = samples.groupby("state", sort=False)
    mean, squares = totals.norm_sums / max(totals.tokens, 1)
    cosine = totals.layer_cosine / max(totals.tokens, 1)
    following = [cosine[s, s + 1] if s + 1 < len(states) else np.nan for s in range(len(states))]
    values = moments(totals.powers)
    columns = {
        "mean": values.mean,
        "std": values.std,
        "kurtosis": values.kurtosis,
        "mean_l2": _by_tokens(samples, "mean_l2").reindex(states).to_numpy(),
        "std_l2": np.sqrt(np.maximum(squares - mean**2, 0)),
        "absmax": by_state["absmax"].max().reindex(states).to_numpy(),
        "zero_share": _by_tokens(samples, "zero_share").reindex(states).to_numpy(),
        "witness": by_state["witness"].max().reindex(states).to_numpy(),
        "non_finite": totals.non_finite,
        "cosine_to_next_state": following,
        "cosine_to_next_token": totals.adjacent_cosine / max(totals.pairs, 1),
        "effective_rank": [found.effective_rank for found in spectra],
        "components_for_90": [found.components_for(0.9) for found in spectra],
    }
    return pandas.DataFrame(columns, index=pandas.Index(list(states), name="state"))


def _by_tokens(samples: "pandas.DataFrame", column: str) -> "pandas.Series":
    """Mean over tokens, by state, of a column that holds a mean per sample."""
    known = samples[samples[column].notna()]
    weighted = (known[column] * known["num_tokens"]).groupby(known["state"], sort=False).sum()
    return weighted / known.groupby("state", sort=False)["num_tokens"].sum()


def norms(totals: Totals, states: Sequence[str]) -> "pandas.DataFrame":
    """Quantiles of token norms, a line per state; columns ``p1 .. p99``."""
    import pandas

    names = [f"p{share * 100:g}" for share in _QUANTILES]
    table = pandas.DataFrame(totals.norm_quantiles(_QUANTILES).T, columns=names)
    table.insert(0, "state", list(states))
    return table


def positions(totals: Totals, states: Sequence[str]) -> "pandas.DataFrame":
    """``state, first, last, tokens, mean_l2, std_l2``: norms by position."""
    import pandas

    counts, sums, squares = totals.by_position
    mean = sums / np.maximum(counts, 1)
    spread = np.sqrt(np.maximum(squares / np.maximum(counts, 1) - mean**2, 0))
    frames = [
        pandas.DataFrame(
            {
                "state": state,
                "first": totals.edges[:-1],
                "last": totals.edges[1:] - 1,
                "tokens": counts[:, at].astype(np.int64),
                "mean_l2": mean[:, at],
                "std_l2": spread[:, at],
            }
        )
        for at, state in enumerate(states)
    ]
    return pandas.concat(frames, ignore_index=True)


def massive(totals: Totals, states: Sequence[str]) -> "pandas.DataFrame":
    """A line per dimension that is massive anywhere, most frequent first."""
    import pandas

    lines = [
        {
            "state": states[state],
            "dimension": dimension,
            "count": found.count,
            "samples": found.num_samples,
            "share_at_first_token": found.positions[0] / found.count,
            "largest": found.largest,
            "times_median": found.largest_ratio,
            "seen_in": ", ".join(map(str, found.seen_in)),
        }
        for (state, dimension), found in totals.massive.items()
    ]
    names = ["state", "dimension", "count", "samples", "share_at_first_token"]
    table = pandas.DataFrame(lines, columns=[*names, "largest", "times_median", "seen_in"])
    return table.sort_values("count", ascending=False, kind="stable", ignore_index=True)


def similarity(totals: Totals, states: Sequence[str]) -> "pandas.DataFrame":
    """Mean cosine of every two states of the same token, states by states."""
    import pandas

    cosine = totals.layer_cosine / max(totals.tokens, 1)
    return pandas.DataFrame(cosine, index=list(states), columns=list(states))


def spectra(found: Sequence[Spectrum], states: Sequence[str]) -> "pandas.DataFrame":
    """``state, component, share, cumulative``: a line per component of each state."""
    import pandas

    frames = [
        pandas.DataFrame(
            {
                "state": state,
                "component": np.arange(1, len(one.share) + 1),
                "share": one.share,
                "cumulative": np.cumsum(one.share),
            }
        )
        for state, one in zip(states, found, strict=True)
    ]
    return pandas.concat(frames, ignore_index=True)


def anomaly_table(found: Iterable[Anomaly]) -> "pandas.DataFrame":
    """Anomalies by index and state."""
    import pandas

    names = [field.name for field in fields(Anomaly)]
    table = pandas.DataFrame([asdict(one) for one in found], columns=names)
    return table.sort_values(["index", "state"], kind="stable", ignore_index=True)
