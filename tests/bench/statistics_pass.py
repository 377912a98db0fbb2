"""(e) The statistics of a store of wide samples against reading its files one after another.

    python tests/bench/statistics_pass.py --samples 64 --tokens 512

Both read every byte; before each the files are dropped from the page cache. In turns; the ratio
is the median of the turns'.
"""

import os
import tempfile
from pathlib import Path

from common import arguments, measure, median, report
from store_copy import make_dump, store_all

from hslib import stats
from hslib.dump import DumpDir
from hslib.store import Store

_READ_BYTES = 8 << 20


def main() -> None:
    chosen = arguments(__doc__ or "", samples=64, tokens=512, turns=5)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), chosen.samples, chosen.tokens)
        files = [store.path / entry.file for entry in store.entries.values()]
        size = sum(path.stat().st_size for path in files)
        reading, measuring = [], []
        for _ in range(chosen.turns):
            drop(files)
            reading.append(measure(lambda: read(files)))
            drop(files)
            measuring.append(measure(lambda: stats.measure(store)))
    ratios = [r.wall_s / m.wall_s for r, m in zip(reading, measuring, strict=True)]
    row = {
        "samples": chosen.samples,
        "tokens": chosen.tokens,
        "GB": size / 1e9,
        "read GB/s": size / 1e9 / median([cost.wall_s for cost in reading]),
        "statistics GB/s": size / 1e9 / median([cost.wall_s for cost in measuring]),
        "statistics / read": median(ratios),
        "statistics CPU s/GB": median([cost.cpu_s for cost in measuring]) / (size / 1e9),
    }
    report("(e) statistics of a store against reading it", [row], chosen.out)


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
