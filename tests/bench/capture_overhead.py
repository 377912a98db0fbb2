"""(a) Full extraction against plain prefill of the same rows, same server, same concurrency.

    python tests/bench/capture_overhead.py --load short --rows 2000
    python tests/bench/capture_overhead.py --load wide512 --rows 60

Beside the ratio: extra CPU seconds a GB, client and server together, against those of copying
the same bytes with ``cp`` to tmpfs and from there to disk. ``cp`` is measured while the server
prefills the same rows, as ours is: on few cores everything costs more while others work.
"""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from common import Cost, arguments, measure, median, ratio, report, served

# of each sample: to tmpfs, to disk, durable, gone from tmpfs
COPY = """
mkdir -p "$2"
for i in $(seq "$3"); do
  cp "$1" "$1.dump"; cp "$1.dump" "$2/$i"; sync "$2/$i"; rm "$1.dump"
done
"""


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=1000, turns=3)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as shared,
        served(chosen.load, chosen.rows) as bench,
    ):
        samples, size, total = bench.samples, bench.sample_bytes, bench.size_bytes
        copies = bench.folder / "copies"

        def plain() -> None:
            bench.prefill(samples)

        def copied() -> None:
            beside(plain, copy_all(Path(shared) / "blob", copies, size, len(samples)))

        bench.prefill(samples[: max(8, len(samples) // 5)])  # warm-up
        arms: dict[str, list[Cost]] = {"plain": [], "cp": [], "full": []}
        for _ in range(chosen.turns):
            arms["plain"].append(measure(plain, bench.state))
            if size > 1 << 20:  # else it is the forks that are measured
                arms["cp"].append(measure(copied, bench.state, total))
                shutil.rmtree(copies)
            arms["full"].append(bench.extract())
    row = {
        "load": chosen.load,
        "rows": len(samples),
        "in flight": bench.load.concurrency,
        "GB": total / 1e9,
        "plain samples/s": len(samples) / median([cost.wall_s for cost in arms["plain"]]),
        "full samples/s": len(samples) / median([cost.wall_s for cost in arms["full"]]),
    }
    for arm in ("full", "cp"):
        if arms[arm]:
            more = [c.cpu_s - p.cpu_s for p, c in zip(arms["plain"], arms[arm], strict=True)]
            row[f"{arm} / plain"] = ratio(arms["plain"], arms[arm])
            row[f"{arm} CPU s/GB"] = median(more) / total * 1e9
    report("(a) full extraction against plain prefill", [row], chosen.out)


def copy_all(blob: Path, target: Path, size: int, count: int) -> Callable[[], None]:
    """``cp`` of as many bytes as the samples have, in files of that size."""
    blob.write_bytes(b"\x5a" * size)
    command = ["bash", "-c", COPY, "copy", str(blob), str(target), str(count)]
    return lambda: subprocess.run(command, check=True) and None


def beside(work: Callable[[], None], other: Callable[[], None]) -> None:
    """Both at once; returns when both are done."""
    thread = threading.Thread(target=other)
    thread.start()
    work()
    thread.join()


if __name__ == "__main__":
    main()
