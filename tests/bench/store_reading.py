"""(f) Deep verification, and the statistics, of a store against reading its files one by one.

    python tests/bench/store_reading.py --samples 224 --tokens 512

All read every byte; before each the files are dropped from the page cache. In turns; ratios are
the medians of the turns'.
"""

import os
import tempfile
from pathlib import Path

from common import Cost, arguments, measure, median, ratio, report
from store_copy import make_dump, store_all

from hslib import stats
from hslib.server.dumps import DumpDir
from hslib.store import Store

_READ_BYTES = 8 << 20


def main() -> None:
    chosen = arguments(__doc__ or "", samples=224, tokens=512, turns=3)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), chosen.samples, chosen.tokens)
        files = [store.path / entry.file for entry in store.entries.values()]
        size = sum(path.stat().st_size for path in files)
        arms = {
            "read": lambda: read(files),
            "verify": lambda: verify(store),
            "statistics": lambda: stats.measure(store),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in arms}
        for _ in range(chosen.turns):
            for name, work in arms.items():
                drop(files)
                costs[name].append(measure(work))
    rows = [
        {
            "arm": name,
            "GB": size / 1e9,
            "GB/s": size / 1e9 / median([cost.wall_s for cost in costs[name]]),
            "of read": ratio(costs["read"], costs[name]),
            "CPU s/GB": median([cost.cpu_s for cost in costs[name]]) / (size / 1e9),
        }
        for name in arms
    ]
    report("(f) verifying and measuring a store against reading it", rows, chosen.out)


def verify(store: Store) -> None:
    assert store.verify(deep=True).clean


def make_store(folder: Path, samples: int, tokens: int) -> Store:
    """Random states; a dump at a time, so that they need not lie there twice."""
    store = folder / "store"
    for index in range(samples):
        with tempfile.TemporaryDirectory(dir=folder) as dumps:
            store_all(DumpDir(dumps), [make_dump(DumpDir(dumps), index, tokens)], store, 1)
    return Store(store)


def drop(files: list[Path]) -> None:
    """Out of the page cache, as far as the kernel agrees."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read(files: list[Path]) -> None:
    """One after another, as fast as one thread can."""
    buffer = bytearray(_READ_BYTES)
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        while os.readv(fd, [buffer]):
            pass
        os.close(fd)


if __name__ == "__main__":
    main()
