"""What a store, or a journal alone, says of its samples' ids and masks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hslib.dataset import Dataset, absolute_source
from hslib.diagnosis.ids.change import Text
from hslib.diagnosis.ids.comparison import IdComparison, compare_ids, place
from hslib.diagnosis.ids.masks import compare_masks
from hslib.diagnosis.rows import DatasetRows
from hslib.errors import HslibError, StoreError
from hslib.store import Entry, Store, combine, read_journal, read_store_url

_READ = 2000  # samples whose rows changed; of the others the digest is enough


def compare_stored(
    evidence: str, dataset: Dataset, rows: DatasetRows, text: Text
) -> IdComparison | None:
    """Stored ids, and masks where the ids agree, against the dataset's rows.

    None for a log or dumps.
    """
    store, entries = _entries(evidence)
    known = {entry.index: entry for entry in entries if entry.digest}
    digests = {index: entry.digest for index, entry in known.items()}
    if not digests:
        return None
    places = place(digests, rows)
    tokens = _tokens(store, places.changed[:_READ]) if store is not None else {}
    compared = compare_ids(places, tokens, rows, text)
    masks = compare_masks(store, known, places.agreeing, dataset)
    return replace(compared, findings=(*compared.findings, masks)) if masks else compared


def rejected_rows(evidence: str, dataset: str) -> frozenset[int]:
    """Rows of this dataset that the store's job has rejected; none for a log or another dataset."""
    store, _ = _entries(evidence) if evidence else (None, ())
    if store is None or absolute_source(dataset) != store.manifest.dataset_path:
        return frozenset()
    return frozenset(store.journal_state.rejected)


def _entries(evidence: str) -> tuple[Store | None, Iterable[Entry]]:
    """As :func:`~hslib.diagnosis.filing.observations.read_any` finds them."""
    at = read_store_url(evidence)
    if isinstance(at, Path) and at.is_file():
        is_journal = at.suffix == ".jsonl"
        return None, combine(read_journal(at)).stored.values() if is_journal else ()
    for url in [at, at / "store"] if isinstance(at, Path) else [at]:
        try:
            store = Store(url)
        except (HslibError, OSError):
            continue
        return store, store.entries.values()
    return None, ()


def _tokens(store: Store, samples: Sequence[int]) -> dict[int, np.ndarray]:
    """int64 [T] of each; nothing where a file is gone, which ``verify`` is there to say."""
    try:
        return {
            index: kept.input_ids.numpy()
            for index, kept in zip(samples, store.tokens(samples), strict=True)
        }
    except StoreError:
        return {}
