"""(a) Full extraction against plain prefill of the same rows, same server, same concurrency.

    python tests/bench/capture_overhead.py --load short --rows 2000
    python tests/bench/capture_overhead.py --load wide512 --rows 60

Beside the ratio: extra CPU seconds a GB, client and server together, against those of copying
the same bytes with ``cp`` to tmpfs and with ``cp`` to disk.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from common import (
    arguments,
    extract_all,
    job,
    measure,
    median,
    open_fleet,
    plain_prefill,
    report,
    rows_of,
    serve,
    workload,
)

from hslib.store import Store


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=1000, turns=3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = workload(chosen.load, folder, chosen.rows)
        samples = rows_of(load, folder / "rows.jsonl")
        with serve(load, folder) as state:
            first = job(load, state, folder)
            fleet = open_fleet(first)
            plain_prefill(load, state, samples[: max(8, len(samples) // 5)], first)  # warm-up
            plain, full, sizes = [], [], []
            hidden_size, states = (
                fleet.proof.expected.hidden_size,
                len(fleet.proof.expected.boundaries) + 1,
            )
            size = int(1.2 * sum(load.lengths) * hidden_size * states * 2)
            for _ in range(chosen.turns):
                wanted = job(load, state, folder)
                cost = measure(lambda w=wanted: plain_prefill(load, state, samples, w), state)
                plain.append(cost)
                full.append(measure(lambda w=wanted: extract_all(w, fleet), state, size))
                store = Store(wanted.store_path)
                sizes.append(sum(e.size_bytes for e in store.entries.values()))
                shutil.rmtree(wanted.run_path)
        copied = copy_cost(folder / "blob", min(sizes[0], 2 << 30))
    gigabytes = sizes[0] / 1e9
    ratio = median([p.wall_s / f.wall_s for p, f in zip(plain, full, strict=True)])
    extra = [f.cpu_s - p.cpu_s for p, f in zip(plain, full, strict=True)]
    row = {
        "load": load.name,
        "rows": len(samples),
        "in flight": load.concurrency,
        "GB": gigabytes,
        "plain samples/s": len(samples) / median([p.wall_s for p in plain]),
        "full samples/s": len(samples) / median([f.wall_s for f in full]),
        "full / plain": ratio,
        "extra CPU s/GB": median(extra) / gigabytes,
        "cp+cp CPU s/GB": copied,
    }
    report("(a) full extraction against plain prefill", [row], chosen.out)


def copy_cost(blob: Path, size: int) -> float:
    """CPU seconds a GB of ``cp`` to tmpfs plus ``cp`` to disk."""
    with blob.open("wb") as handle:
        for _ in range(size >> 20):
            handle.write(b"\x5a" * (1 << 20))
    targets = (Path("/dev/shm/hslib-bench-blob"), blob.with_suffix(".copy"))
    total = 0.0
    for target in targets:
        total += measure(
            lambda t=target: subprocess.run(["cp", blob, t], check=True), warm_bytes=size
        ).cpu_s
        target.unlink()
    return total / ((size >> 20 << 20) / 1e9)


if __name__ == "__main__":
    main()
