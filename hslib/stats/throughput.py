"""How fast a job was over its time, from the journal alone.

A store may have been filled in several sittings. A pause is left out: the time that tables and
figures show is the time at work.
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
    """Seconds at work when each sample was done, pauses taken out; both ascending by time."""
    if not len(finished_at):
        return finished_at
    gaps = np.diff(finished_at)
    longest = max(_PAUSE_S, 5 * float(np.max(latency_s)))
    steps = np.where(gaps > longest, latency_s[1:], gaps)
    return np.concatenate([[0.0], np.cumsum(steps)]) + float(latency_s[0])


def over_time(entries: Iterable[Entry], bins: int = _BINS) -> "pandas.DataFrame":
    """A line a stretch of working time.

    Columns ``from_minutes``, ``to_minutes``, ``samples``, ``samples_per_s``, ``tokens_per_s``,
    ``mb_per_s``, ``latency_p50_s``, ``latency_p95_s``: seconds from request to commit, NaN where
    no sample finished.
    """
    import pandas

    lines = sorted((e for e in entries if e.finished_at), key=lambda e: e.finished_at)
    columns = {
        name: np.array([getattr(e, name) for e in lines], dtype=np.float64)
        for name in ("finished_at", "latency_s", "num_tokens", "size_bytes")
    }
    table = pandas.DataFrame(columns)
    at = working_time(columns["finished_at"], columns["latency_s"])
    seconds = float(at[-1]) if len(at) else 1.0
    edges = np.linspace(0, seconds, _num_bins(seconds, columns["latency_s"], bins) + 1)
    count = len(edges) - 1
    where = np.clip(np.searchsorted(edges, at, side="left") - 1, 0, count - 1)
    groups = table.groupby(where)
    sums = groups[["num_tokens", "size_bytes"]].sum().reindex(range(count), fill_value=0)
    samples = groups.size().reindex(range(count), fill_value=0)
    latency = groups["latency_s"]
    width = max(float(edges[1] - edges[0]), 1e-9)
    return pandas.DataFrame(
        {
            "from_minutes": edges[:-1] / 60,
            "to_minutes": edges[1:] / 60,
            "samples": samples,
            "samples_per_s": samples / width,
            "tokens_per_s": sums["num_tokens"] / width,
            "mb_per_s": sums["size_bytes"] / 1e6 / width,
            "latency_p50_s": latency.quantile(0.5).reindex(range(count)),
            "latency_p95_s": latency.quantile(0.95).reindex(range(count)),
        }
    )


def _num_bins(seconds: float, latency_s: np.ndarray, most: int) -> int:
    """Bins longer than an answer takes: rows that share a request end together."""
    longest = float(np.median(latency_s)) if len(latency_s) else 1.0
    return int(max(1, min(most, seconds / max(longest, 1e-9), len(latency_s))))


def summary(entries: Iterable[Entry]) -> dict[str, float]:
    """Rates of the whole working time: ``hours, samples_per_s, tokens_per_s, mb_per_s``,
    ``latency_p50_s, latency_p95_s, attempts`` (tries a sample)."""
    lines = sorted((e for e in entries if e.finished_at), key=lambda e: e.finished_at)
    if not lines:
        return {}
    latency = np.array([e.latency_s for e in lines])
    seconds = float(working_time(np.array([e.finished_at for e in lines]), latency)[-1])
    seconds = max(seconds, 1e-9)
    return {
        "hours": seconds / 3600,
        "samples_per_s": len(lines) / seconds,
        "tokens_per_s": sum(e.num_tokens for e in lines) / seconds,
        "mb_per_s": sum(e.size_bytes for e in lines) / 1e6 / seconds,
        "latency_p50_s": float(np.quantile(latency, 0.5)),
        "latency_p95_s": float(np.quantile(latency, 0.95)),
        "attempts": sum(e.attempts for e in lines) / len(lines),
    }
