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

from common import (
    Cost,
    Workload,
    arguments,
    extract_all,
    job,
    measure,
    median,
    open_endpoints,
    plain_prefill,
    report,
    rows_of,
    serve,
    workload,
)

from hslib.server.endpoints import Endpoints

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
        tempfile.TemporaryDirectory() as name,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shared,
    ):
        folder = Path(name)
        load = workload(chosen.load, folder, chosen.rows)
        samples = rows_of(load, folder / "rows.jsonl")
        with serve(load, folder) as state:
            first = job(load, state, folder)
            fleet = open_endpoints(first)
            size = sample_bytes(load, fleet)
            total = size * len(samples)

            def plain() -> None:
                plain_prefill(load, state, samples, first)

            def copied() -> None:
                beside(plain, copy_all(Path(shared) / "blob", folder / "copies", size, load))

            plain_prefill(load, state, samples[: max(8, len(samples) // 5)], first)  # warm-up
            arms: dict[str, list[Cost]] = {"plain": [], "cp": [], "full": []}
            for _ in range(chosen.turns):
                arms["plain"].append(measure(plain, state))
                if size > 1 << 20:  # else it is the forks that are measured
                    arms["cp"].append(measure(copied, state, total))
                    shutil.rmtree(folder / "copies")
                wanted = job(load, state, folder)
                cost = measure(lambda w=wanted: extract_all(w, fleet), state, total)
                arms["full"].append(cost)
                shutil.rmtree(wanted.run_path)
    row = {
        "load": load.name,
        "rows": len(samples),
        "in flight": load.concurrency,
        "GB": total / 1e9,
        "plain samples/s": len(samples) / median([cost.wall_s for cost in arms["plain"]]),
        "full samples/s": len(samples) / median([cost.wall_s for cost in arms["full"]]),
    }
    for arm in ("full", "cp"):
        if arms[arm]:
            pairs = list(zip(arms["plain"], arms[arm], strict=True))
            row[f"{arm} / plain"] = median([p.wall_s / c.wall_s for p, c in pairs])
            row[f"{arm} CPU s/GB"] = median([c.cpu_s - p.cpu_s for p, c in pairs]) / total * 1e9
    report("(a) full extraction against plain prefill", [row], chosen.out)


def sample_bytes(load: Workload, fleet: Endpoints) -> int:
    """Bytes of the states of one row."""
    expected = fleet.check.expected
    return load.lengths[0] * expected.num_states * expected.hidden_size * 2


def copy_all(blob: Path, target: Path, size: int, load: Workload) -> Callable[[], None]:
    """``cp`` of as many bytes as the samples have, in files of that size."""
    blob.write_bytes(b"\x5a" * size)
    command = ["bash", "-c", COPY, "copy", str(blob), str(target), str(len(load.lengths))]
    return lambda: subprocess.run(command, check=True) and None


def beside(work: Callable[[], None], other: Callable[[], None]) -> None:
    """Both at once; returns when both are done."""
    thread = threading.Thread(target=other)
    thread.start()
    work()
    thread.join()


if __name__ == "__main__":
    main()
