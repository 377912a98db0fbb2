"""Which tokens train: stored masks against the dataset's, of samples whose ids agree."""

from collections.abc import Mapping, Sequence

import numpy as np

from hslib.dataset import Dataset, Rejection
from hslib.diagnosis.catalogue import OTHER_MASK
from hslib.diagnosis.filing.finding import Finding
from hslib.errors import StoreError
from hslib.store import Entry, Store

_SHOWN = 3


def compare_masks(
    store: Store | None, entries: Mapping[int, Entry], agreeing: Sequence[int], dataset: Dataset
) -> Finding | None:
    """Samples whose mask is not the one that the job would read from the dataset now.

    Args:
        store: None where only its journal is at hand; it is read for the examples alone.
        agreeing: samples whose ids are those of their rows.
    """
    wanted = {index for index in agreeing if entries[index].mask_digest}
    differing: list[int] = []
    shown: dict[int, np.ndarray] = {}
    for row in dataset if wanted else ():
        if isinstance(row, Rejection) or row.index not in wanted:
            continue
        if row.mask_digest != entries[row.index].mask_digest:
            differing.append(row.index)
            if len(shown) < _SHOWN:
                shown[row.index] = row.loss_mask
    if not differing:
        return None
    examples = _examples(store, shown)
    return Finding(OTHER_MASK, np.array(differing, np.int64), examples[0], examples=examples)


def _examples(store: Store | None, masks: Mapping[int, np.ndarray]) -> tuple[str, ...]:
    """How many tokens of a sample train, on both sides where its file can be read."""
    try:
        tokens = list(store.tokens(masks)) if store is not None else []
    except StoreError:
        tokens = []  # a file is gone, which verify is there to say
    if not tokens:
        return tuple(
            f"sample {index}: {mask.sum()} of {len(mask)} tokens train in the dataset, others in "
            "the store"
            for index, mask in masks.items()
        )
    return tuple(
        f"sample {index}: {int(kept.loss_mask.sum())} of {len(mask)} tokens train in the store, "
        f"{mask.sum()} in the dataset; the first that differs is at position "
        f"{int(np.flatnonzero(kept.loss_mask.numpy() != mask)[0])}"
        for (index, mask), kept in zip(masks.items(), tokens, strict=True)
    )
