"""(e) Growth: time a sample and memory at 200, 2,000 and 20,000 rows; opening 100,000 lines.

    python tests/bench/growth.py

A hand-made server in another process answers at once, so what grows is the kit's own.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
from common import arguments, measure, report, tiny_models
from make.rows import random_sample, write_rows

from hslib import extract
from hslib.parameters import ExtractionParameters
from hslib.server.endpoints import open_endpoints
from hslib.store import Entry, combine, open_storage, read_journal

SERVER = """
import sys, time
from pathlib import Path
from fakes.server import FakeServer
fake = FakeServer(Path(sys.argv[1]), Path(sys.argv[2]))
print(fake.url, flush=True)
time.sleep(100000)
"""


def main() -> None:
    chosen = arguments(__doc__ or "", largest=20_000, lines=100_000)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as tmp:
        folder = Path(name)
        model = tiny_models.build("llama", folder / "model")
        path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        fake = subprocess.Popen(
            [sys.executable, "-c", SERVER, f"{tmp}/dumps", str(model)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert fake.stdout is not None
        url = fake.stdout.readline().strip()
        try:
            counts = [n for n in (200, 2_000, 20_000) if n <= chosen.largest]
            rows = [one_size(folder, model, url, f"{tmp}/dumps", count) for count in counts]
        finally:
            fake.kill()
        rows.append(open_lines(folder / "lines.jsonl", chosen.lines))
    report("(e) growth", rows, chosen.out)


def one_size(folder: Path, model: Path, url: str, dumps: str, count: int) -> dict[str, object]:
    run = folder / f"run-{count}"
    run.mkdir()
    samples = (random_sample(i, 20) for i in range(count))
    parameters = ExtractionParameters.from_values(
        {
            "run_dir": str(run),
            "dataset_path": str(write_rows(run / "rows.jsonl", list(samples))),
            "model_path": str(model),
            "layers": "1,3,5",
            "server_url": url,
            "dump_dir": dumps,
            "concurrency": 8,
        }
    )
    fleet = open_endpoints(parameters)
    job = extract.prepare(parameters, fleet)
    cost = measure(lambda: extract.run(job, fleet).require_whole())
    return {
        "rows": count,
        "ms a sample": cost.wall_s / count * 1e3,
        "CPU ms a sample": cost.cpu_s / count * 1e3,
        "memory MB": psutil.Process().memory_info().rss / 1e6,
    }


def open_lines(path: Path, count: int) -> dict[str, object]:
    layers = [{"finite": True, "absmax": 1.5, "mean_l2": 20.25, "zero_share": 0.001}] * 4
    storage = open_storage(path.parent)
    with path.open("wb") as handle:
        for index in range(count):
            entry = Entry(
                index=index,
                id=f"r{index}",
                status="ok",
                num_tokens=800,
                digest=f"{index:032x}",
                mask_digest=f"{index:032x}",
                file=storage.sample_file(index, ""),
                size_bytes=45_000_000 + index,
                checksum=f"{index:016x}",
                attempts=1,
                latency_s=1.5,
                layers=layers,
                finished_at=1.8e9 + index,
            )
            handle.write(msgspec.json.encode(entry) + b"\n")
    before = psutil.Process().memory_info().rss
    started = time.perf_counter()
    state = combine(read_journal(path))
    seconds = time.perf_counter() - started
    assert len(state.stored) == count
    grown = psutil.Process().memory_info().rss - before
    return {"rows": f"{count} lines", "open s": seconds, "memory MB": grown / 1e6}


if __name__ == "__main__":
    main()
