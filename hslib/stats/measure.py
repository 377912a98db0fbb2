"""One pass over a store's samples, in bounded memory, gives all tables."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hslib.errors import StoreError
from hslib.stats import anomalies, tables
from hslib.stats.coherence import Sketcher
from hslib.stats.sample import SampleNumbers, measure_sample
from hslib.stats.sampling import Sampling, draw
from hslib.stats.totals import Totals
from hslib.store import Store

if TYPE_CHECKING:
    import pandas

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class StoreStats:
    """Tables of a store; see :mod:`hslib.stats.tables` for their columns and units."""

    sampling: Sampling
    states: tuple[str, ...]
    layers: "pandas.DataFrame"
    samples: "pandas.DataFrame"
    norms: "pandas.DataFrame"
    positions: "pandas.DataFrame"
    massive: "pandas.DataFrame"
    similarity: "pandas.DataFrame"
    spectra: "pandas.DataFrame"
    masks: "pandas.DataFrame"
    anomalies: "pandas.DataFrame"

    def write(self, folder: Path) -> None:
        """Every table as CSV below ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self)[2:]:
            table = getattr(self, field.name)
            named = table.index.name is not None or field.name == "similarity"
            table.to_csv(folder / f"{field.name}.csv", index=named)

    def sentence(self) -> str:
        """The verdict in words."""
        found = self.anomalies
        if found.empty:
            return "No anomaly: no sample stands apart from the others."
        kinds = ", ".join(f"{n} x {reason}" for reason, n in found["reason"].value_counts().items())
        return (
            f"{found['index'].nunique()} samples stand apart from the others ({kinds}): "
            "look at them before you train on them."
        )


def measure(
    store: Store,
    sample_limit: int = 0,
    seed: int = 0,
    show: Callable[[int, int], None] = lambda _done, _total: None,
) -> StoreStats:
    """Read the store once and compute everything.

    Args:
        sample_limit: samples to draw; 0 = all.
        show: called with (samples read, samples to read).

    Raises:
        StoreError: the store is empty, or a sample's file is not whole.
    """
    if not store.entries:
        where = str(store.path)
        raise StoreError("the store holds no sample yet", path=where, fix="run notebook 03 first")
    sampling = draw(store.entries, sample_limit, seed)
    states = store.manifest.state_names
    sketcher = Sketcher(store.manifest.hidden_size, seed)
    nothing = np.empty(0, dtype=np.int64)

    def work(index: int) -> SampleNumbers:
        return measure_sample(store[index], sampling.tokens.get(index, nothing), sketcher)

    totals = Totals(len(states), max(store.entries[i].num_tokens for i in sampling.indices))
    lines: list[np.ndarray] = []
    mask_tokens: list[int] = []
    hashes: dict[int, str] = {}
    ahead = (_read_ahead(store, index) for index in sampling.indices)
    for done, numbers in enumerate(in_order(work, ahead), start=1):
        totals.add(numbers)
        lines.append(tables.sample_numbers(numbers, store.entries[numbers.index]))
        mask_tokens.append(numbers.mask_tokens)
        hashes[numbers.index] = numbers.states_hash
        show(done, len(sampling.indices))
    samples = tables.samples(lines, sampling.indices, states)
    num_tokens = [store.entries[index].num_tokens for index in sampling.indices]
    spectra = list(in_order(totals.spectrum, range(len(states))))
    found = [
        *anomalies.find_defects(samples),
        *anomalies.find_outliers(samples),
        *anomalies.find_same_states(hashes, store.entries),
        *anomalies.find_foreign_states(sampling.indices, totals.sketches),
    ]
    return StoreStats(
        sampling=sampling,
        states=states,
        layers=tables.layers(totals, samples, states, spectra),
        samples=samples,
        norms=tables.norms(totals, states),
        positions=tables.positions(totals, states),
        massive=tables.massive(totals, states),
        similarity=tables.similarity(totals, states),
        spectra=tables.spectra(spectra, states),
        masks=tables.masks(sampling.indices, num_tokens, mask_tokens),
        anomalies=tables.anomaly_table(found),
    )


def _read_ahead(store: Store, index: int) -> int:
    """Ask for a sample's file before it is needed; returns the index."""
    store.storage.read_ahead(store.entries[index].file)
    return index


def in_order(
    work: Callable[[Item], Value], items: Iterable[Item], workers: int = 0
) -> Iterator[Value]:
    """Results in the order of ``items``, computed by threads; few items are taken ahead.

    Each thread lets torch use one thread: the work is too small to be divided further.
    """
    import torch

    count = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[Value]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
