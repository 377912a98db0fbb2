"""How big a store is, and how big the whole job gets.

Two extrapolations lead from the stored rows to all rows. *By rows*: the mean bytes of the stored
rows times the number of rows; right only if the stored rows are a fair draw. *By tokens*: the
bytes per token times the tokens of all rows; exact, but all rows' lengths must be known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hslib.dataset import Dataset, Limits
from hslib.errors import StoreError
from hslib.store import Store, size_words

_ALIKE = 1.25  # a larger ratio of the two extrapolations is explained in words


@dataclass(frozen=True)
class Outlook:
    """Bytes of the whole job, from the tokens of each stored row, or of a part of them.

    ``all_tokens``: of all rows; None where their lengths are unknown.
    """

    lengths_seen: Sequence[int]
    bytes_per_token: float
    rows: int
    all_tokens: int | None = None
    about: str = ""  # which part of which job

    @property
    def tokens_per_row_seen(self) -> float:
        return sum(self.lengths_seen) / len(self.lengths_seen)

    @property
    def from_rows(self) -> float:
        return self.tokens_per_row_seen * self.bytes_per_token * self.rows

    @property
    def from_tokens(self) -> float | None:
        return None if self.all_tokens is None else self.all_tokens * self.bytes_per_token

    @property
    def agree(self) -> bool:
        """Whether both extrapolations say about the same."""
        if self.from_tokens is None:
            return True
        low, high = sorted((self.from_rows, self.from_tokens))
        return high <= _ALIKE * low

    def sentence(self) -> str:
        """The answer in words, with the reason where the two differ."""
        text = (
            f"{self.about}: from {len(self.lengths_seen):,} rows of "
            f"{self.tokens_per_row_seen:,.0f} tokens on average, "
            f"{self.rows:,} rows take {size_words(self.from_rows)}."
        )
        if self.all_tokens is None or self.from_tokens is None:
            return text + " This holds if those are a fair sample of all rows."
        text += f" From the tokens of all rows, they take {size_words(self.from_tokens)}"
        if self.agree:
            return text + "."
        tokens = self.all_tokens / self.rows
        return (
            f"{text}: rows have {tokens:,.0f} tokens on average, "
            f"{tokens / self.tokens_per_row_seen:,.1f} times those of the part. The part is no "
            "fair sample of the whole (first in file order, cut short, or counted in another run "
            "than its bytes). Trust the tokens."
        )


def outlook(store: Store, rows_asked: int = 0, dataset_path: str = "") -> Outlook:
    """How big the job gets; for a complete store, what its first third would have said.

    Args:
        rows_asked: rows that the job is to store; 0 = no more than there are.
        dataset_path: the whole dataset; with it the number and lengths of all rows are known.

    Raises:
        StoreError: nothing is stored yet.
        DatasetError: the dataset can't be read.
    """
    stored = list(store.entries.values())
    if not stored:
        raise StoreError("the store holds no sample yet", fix="run notebook 03 first")
    rows, tokens = max(rows_asked, len(stored)), None
    if dataset_path:
        limits = Limits(store.manifest.vocab_size, max_tokens=2**31)
        survey = Dataset(dataset_path, limits).survey()
        rows, tokens = len(survey.rows), survey.num_tokens
    seen, about = stored, f"{rows - len(stored):,} rows are still to come"
    if len(stored) >= rows:
        seen = stored[: max(1, len(stored) // 3)]
        about = "The store is complete. Its first third would have predicted"
        rows, tokens = len(stored), sum(entry.num_tokens for entry in stored)
    lengths = [entry.num_tokens for entry in seen]
    size = sum(entry.size_bytes for entry in seen)
    return Outlook(lengths, size / max(sum(lengths), 1), rows, tokens, about)


def size_facts(store: Store) -> dict[str, str]:
    """How big the store is, for a table."""
    stored = list(store.entries.values())
    tokens = sum(entry.num_tokens for entry in stored)
    size = sum(entry.size_bytes for entry in stored)
    count = max(len(stored), 1)
    return {
        "samples": f"{len(stored):,}",
        "tokens": f"{tokens:,}",
        "size": size_words(size),
        "bytes per token": f"{size / max(tokens, 1):,.0f}",
        "a sample, on average": f"{size_words(size / count)}, {tokens / count:,.0f} tokens",
        "encoding": store.encoding_sentence(),
    }


def longest_allowed(store: Store) -> int:
    """Tokens of the longest row that the server took; 0 when the manifest does not say."""
    return int(store.manifest.server.get("max_req_input_len", 0) or 0)
