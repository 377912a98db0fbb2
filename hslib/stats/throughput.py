"""How fast a job was, from the journal alone.

A store may have been filled in several sittings. Pauses between them are left out: times here
are working time.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from hslib.store import Entry

if TYPE_CHECKING:
    import pandas

_PAUSE_S = 60.0  # longer gaps between two samples are pauses, unless samples take as long
_BINS = 60


def working_time(finished_at: np.ndarray, latency_s: np.ndarray) -> np.ndarray:
    """Seconds of work until each sample was done, without pauses; float64 [N], ascending."""
    if not len(finished_at):
        return finished_at
    gaps = np.diff(finished_at)
    longest = max(_PAUSE_S, 5 * float(np.max(latency_s)))
    steps = np.where(gaps > longest, latency_s[1:], gaps)
    return np.concatenate([[0.0], np.cumsum(steps)]) + float(latency_s[0])


def _finished(entries: Iterable[Entry]) -> "pandas.DataFrame":
    """A line per sample in order of finishing, with ``at`` in seconds of work."""
    import pandas

    names = ["finished_at", "latency_s", "num_tokens", "size_bytes", "attempts"]
    lines = [[getattr(entry, name) for name in names] for entry in entries if entry.finished_at]
    table = pandas.DataFrame(lines, columns=names, dtype=float).sort_values(
        "finished_at", kind="stable", ignore_index=True
    )
    at = working_time(table["finished_at"].to_numpy(), table["latency_s"].to_numpy())
    return table.assign(at=at)


def rates_over_time(entries: Iterable[Entry]) -> "pandas.DataFrame":
    """A line per stretch of working time.

    Columns ``from_minutes``, ``to_minutes``, ``samples``, ``samples_per_s``, ``tokens_per_s``,
    ``mb_per_s``, ``latency_p50_s``, ``latency_p95_s``: seconds from request to commit, NaN where
    no sample finished.
    """
    import pandas

    table = _finished(entries)
    seconds = float(table["at"].iloc[-1]) if len(table) else 1.0
    edges = np.linspace(0, seconds, _num_bins(seconds, table["latency_s"].to_numpy()) + 1)
    every = range(len(edges) - 1)
    where = np.clip(np.searchsorted(edges, table["at"], side="left") - 1, 0, len(every) - 1)
    groups = table.groupby(where)
    sums = groups[["num_tokens", "size_bytes"]].sum().reindex(every, fill_value=0)
    samples = groups.size().reindex(every, fill_value=0)
    width = max(float(edges[1] - edges[0]), 1e-9)
    return pandas.DataFrame(
        {
            "from_minutes": edges[:-1] / 60,
            "to_minutes": edges[1:] / 60,
            "samples": samples,
            "samples_per_s": samples / width,
            "tokens_per_s": sums["num_tokens"] / width,
            "mb_per_s": sums["size_bytes"] / 1e6 / width,
            "latency_p50_s": groups["latency_s"].quantile(0.5).reindex(every),
            "latency_p95_s": groups["latency_s"].quantile(0.95).reindex(every),
        }
    )


def _num_bins(seconds: float, latency_s: np.ndarray) -> int:
    """Bins longer than an answer takes: rows that share a request end together."""
    longest = float(np.median(latency_s)) if len(latency_s) else 1.0
    return int(max(1, min(_BINS, seconds / max(longest, 1e-9), len(latency_s))))


def rate_summary(entries: Iterable[Entry]) -> dict[str, float]:
    """Of the whole working time: ``hours, samples_per_s, tokens_per_s, mb_per_s``,
    ``latency_p50_s, latency_p95_s``, ``attempts`` (tries per sample); empty for no sample."""
    table = _finished(entries)
    if table.empty:
        return {}
    seconds = max(float(table["at"].iloc[-1]), 1e-9)
    return {
        "hours": seconds / 3600,
        "samples_per_s": len(table) / seconds,
        "tokens_per_s": float(table["num_tokens"].sum()) / seconds,
        "mb_per_s": float(table["size_bytes"].sum()) / 1e6 / seconds,
        "latency_p50_s": float(table["latency_s"].quantile(0.5)),
        "latency_p95_s": float(table["latency_s"].quantile(0.95)),
        "attempts": float(table["attempts"].mean()),
    }
