"""How big a store is, and how big it gets: bytes a token, a sample, the job.

Two ways lead from a part to the whole, and they can differ by a lot. *Rows* times the mean
bytes of the rows that are there is right only if these are a fair draw of all rows; *tokens*
times bytes a token is exact when the lengths of all rows are known. The interval is for the
first way, and says how far chance alone could carry it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hslib.dataset import Dataset, Limits
from hslib.errors import StoreError
from hslib.job.progress import read_progress
from hslib.store import Entry, Store, size_words

_RESAMPLES = 4000


@dataclass(frozen=True)
class Extrapolation:
    """Bytes of the whole from a part of it; ``low`` and ``high`` hold 95 % of the draws.

    ``from_tokens`` is None when the lengths of all rows are not known.
    """

    rows_seen: int
    rows: int
    bytes_per_token: float
    tokens_per_row_seen: float
    from_rows: float
    low: float
    high: float
    from_tokens: float | None

    @property
    def agree(self) -> bool:
        """Whether chance explains the difference between the two ways."""
        return self.from_tokens is None or self.low <= self.from_tokens <= self.high

    def sentence(self) -> str:
        """The answer in words, with the reason when the two ways differ."""
        text = (
            f"{self.rows_seen:,} rows of {self.tokens_per_row_seen:,.0f} tokens on average make "
            f"{self.rows:,} rows {size_words(self.from_rows)} (95 % of such draws: "
            f"{size_words(self.low)} to {size_words(self.high)})."
        )
        if self.from_tokens is None:
            return text + " This holds if they are a fair draw of all rows."
        exact = f"By their tokens all rows take {size_words(self.from_tokens)}"
        if self.agree:
            return f"{text} {exact}."
        tokens = self.from_tokens / self.bytes_per_token / self.rows
        return (
            f"{text} {exact}: rows have {tokens:,.0f} tokens on average, "
            f"{tokens / self.tokens_per_row_seen:,.1f} times those of the part. Chance does not "
            "explain that: the part is no fair draw of the whole (first in file order, cut short, "
            "or counted in another run than its bytes). Believe the tokens."
        )


def extrapolate(
    lengths_seen: Sequence[int],
    bytes_per_token: float,
    rows: int,
    all_tokens: int | None = None,
    seed: int = 0,
) -> Extrapolation:
    """Bytes of ``rows`` rows, from the lengths of the rows that are there. Pure.

    Args:
        lengths_seen: tokens of each stored row.
        all_tokens: tokens of all rows, when known.

    The interval is Student's bootstrap-t (Efron and Tibshirani 1993, chapter 12) of the mean,
    taken on the logarithm because lengths are skewed, with the correction for a part that is a
    large share of a finite whole. It is degenerate for fewer than two rows.
    """
    seen = np.asarray(lengths_seen, dtype=np.float64)
    if not len(seen):
        raise ValueError("no row has been stored yet: nothing to extrapolate from")
    mean = float(seen.mean())
    low, high = _interval(seen, rows, np.random.default_rng(seed))
    scale = bytes_per_token * rows
    exact = None if all_tokens is None else float(all_tokens) * bytes_per_token
    return Extrapolation(
        len(seen), rows, bytes_per_token, mean, mean * scale, low * scale, high * scale, exact
    )


def of_store(
    entries: Iterable[Entry], rows: int, all_tokens: int | None = None, seed: int = 0
) -> Extrapolation:
    """The same from a store's journal.

    Raises:
        ValueError: nothing is stored yet.
    """
    stored = list(entries)
    tokens = sum(entry.num_tokens for entry in stored)
    size = sum(entry.size_bytes for entry in stored)
    lengths = [entry.num_tokens for entry in stored]
    return extrapolate(lengths, size / max(tokens, 1), rows, all_tokens, seed)


@dataclass(frozen=True)
class Outlook:
    """What the size of the whole job is taken from: ``about`` says it."""

    about: str
    found: Extrapolation

    def sentence(self) -> str:
        return f"{self.about}: {self.found.sentence()}"


def outlook(store: Store, run_path: Path, dataset_path: str = "", seed: int = 0) -> Outlook:
    """How big the job gets; of a store that is complete, what its first third would have said.

    Args:
        dataset_path: the whole dataset; with it the tokens still to come are known.

    Raises:
        StoreError: nothing is stored yet.
        DatasetError: the dataset can't be read.
    """
    stored = list(store.entries.values())
    if not stored:
        raise StoreError("the store holds no sample yet", fix="run notebook 03 first")
    rows, tokens = _whole_job(store, run_path, dataset_path)
    if len(stored) < rows:
        about = f"{rows - len(stored):,} rows are still to come"
        return Outlook(about, of_store(stored, rows, tokens, seed))
    tokens = sum(entry.num_tokens for entry in stored)
    part = stored[: max(1, len(stored) // 3)]
    about = "The store is complete; its first third in file order would have said"
    return Outlook(about, of_store(part, len(stored), tokens, seed))


def _whole_job(store: Store, run_path: Path, dataset_path: str) -> tuple[int, int | None]:
    """Rows that will be stored in the end, and their tokens when these are known."""
    if dataset_path:
        limits = Limits(store.manifest.vocab_size, max_tokens=2**31)
        survey = Dataset(Path(dataset_path), limits).survey()
        return len(survey.rows), survey.num_tokens
    state = read_progress(run_path)
    return (max(state.asked - state.rejected, len(store)) if state else len(store)), None


def facts(entries: Iterable[Entry]) -> dict[str, str]:
    """How big the store is, for a table."""
    stored = list(entries)
    tokens = sum(entry.num_tokens for entry in stored)
    size = sum(entry.size_bytes for entry in stored)
    return {
        "samples": f"{len(stored):,}",
        "tokens": f"{tokens:,}",
        "size": size_words(size),
        "bytes a token": f"{size / max(tokens, 1):,.0f}",
        "a sample, on average": f"{size_words(size / max(len(stored), 1))}, "
        f"{tokens / max(len(stored), 1):,.0f} tokens",
    }


def _interval(seen: np.ndarray, rows: int, rng: np.random.Generator) -> tuple[float, float]:
    """95 % interval of the mean length of all rows."""
    n, mean = len(seen), seen.mean()
    if n < 2 or rows <= n:
        return float(mean), float(mean)
    error = _log_error(seen[None])[0]
    if error == 0:
        return float(mean), float(mean)
    chosen = seen[rng.integers(0, n, (_RESAMPLES, n))] if n <= 1000 else None
    if chosen is None:  # the mean of so many is normal, and resampling would take long
        t_low, t_high = -1.96, 1.96
    else:
        errors = np.maximum(_log_error(chosen), error / 100)
        t_low, t_high = np.quantile((np.log(chosen.mean(axis=1) / mean)) / errors, [0.025, 0.975])
    error *= np.sqrt(1 - n / rows)
    return float(mean * np.exp(-t_high * error)), float(mean * np.exp(-t_low * error))


def _log_error(draws: np.ndarray) -> np.ndarray:
    """Standard error of each draw's log mean, by the delta method; draws [R, n]."""
    errors = draws.std(axis=1, ddof=1) / draws.mean(axis=1) / np.sqrt(draws.shape[1])
    return np.asarray(errors)


def longest_allowed(store: Store) -> int:
    """Tokens of the longest row that the server took; 0 when the manifest does not say."""
    return int(store.manifest.server.get("max_req_input_len", 0) or 0)
