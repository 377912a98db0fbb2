"""What the benchmarks share: workloads, a server, CPU accounting, a table and a JSON file.

Figures are ratios within one run on one server; these machines are noisy, so every pair is
measured in turns and the medians are compared.
"""

import argparse
import json
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from make import models as tiny_models

from hslib import demo, extract
from hslib.dataset import Sample
from hslib.job.scheduler import pack
from hslib.parameters import ExtractionParameters, ServerParameters
from hslib.server import launch as server
from hslib.server import processes
from hslib.server.client import ServerClient
from hslib.server.endpoints import open_endpoints

WIDE = {
    "hidden_size": 7168,  # with 3 aux layers and final: 57,344 bytes a token, as in the case
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 64,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
}


@dataclass(frozen=True)
class Workload:
    """Rows for one model; ``layers`` as the launcher takes them."""

    name: str
    model: Path
    layers: str
    vocab_size: int
    lengths: tuple[int, ...]
    concurrency: int


def workload(name: str, folder: Path, rows: int) -> Workload:
    """``short``: the demo model, 64-token rows. ``wide512``, ``wide4096``: the case's width."""
    if name == "short":
        return Workload(name, demo.model_path(), "auto", 600, (64,) * rows, 32)
    length = int(name.removeprefix("wide"))
    model = folder / "wide"
    if not model.exists():
        tiny_models.build("llama", model, **WIDE)
    return Workload(name, model, "1,2,3", tiny_models.VOCAB_SIZE, (length,) * rows, 4)


def rows_of(load: Workload, path: Path, seed: int = 0) -> list[Sample]:
    """Random rows, written as a JSONL dataset too."""
    rng = np.random.default_rng(seed)
    samples = [
        Sample(i, f"r{i}", rng.integers(3, load.vocab_size, n, np.int32), np.ones(n, np.uint8))
        for i, n in enumerate(load.lengths)
    ]
    path.write_text("\n".join(json.dumps({"input_ids": s.input_ids.tolist()}) for s in samples))
    return samples


class Served:
    """A server, the rows of one load, and jobs over them."""

    def __init__(
        self, load: Workload, state: server.ServerState, samples: Sequence[Sample], folder: Path
    ) -> None:
        self.load, self.state, self.samples, self.folder = load, state, samples, folder
        self.endpoints = open_endpoints(self.job())

    def job(self, **values: Any) -> ExtractionParameters:
        """An extraction of all rows into a new store."""
        return ExtractionParameters.from_values(
            {
                "run_dir": tempfile.mkdtemp(dir=self.folder),
                "dataset_path": str(self.folder / "rows.jsonl"),
                "model_path": str(self.load.model),
                "layers": self.load.layers,
                "server_url": self.state.url,
                "dump_dir": self.state.dump_dir,
                "concurrency": self.load.concurrency,
                **values,
            }
        )

    def extract(self, **values: Any) -> "Cost":
        """The cost of a whole job: survey, requests, validation, store."""
        parameters = self.job(**values)

        def work() -> None:
            planned = extract.prepare(parameters, self.endpoints)
            extract.run(planned, self.endpoints).require_whole()

        cost = measure(work, self.state, self.size_bytes)
        shutil.rmtree(parameters.run_path)
        return cost

    def prefill(self, samples: Sequence[Sample]) -> None:
        """Rows in the requests and at the concurrency of a job, captured by nobody."""
        values = self.job()
        groups = pack(samples, values.samples_per_request, values.tokens_per_request)
        with (
            server.client_of(self.state) as client,
            ThreadPoolExecutor(self.load.concurrency) as pool,
        ):
            list(pool.map(lambda group: send(client, group), groups))

    @property
    def sample_bytes(self) -> int:
        """Bytes of the states of one row."""
        expected = self.endpoints.check.expected
        return self.load.lengths[0] * expected.num_states * expected.hidden_size * 2

    @property
    def size_bytes(self) -> int:
        """Bytes of the states of all rows."""
        return self.sample_bytes * len(self.samples)


@contextmanager
def serve(
    load: Workload, samples: Sequence[Sample], folder: Path, run: str = "run", **parameters: Any
) -> Iterator[Served]:
    """One server for all measurements of a script."""
    values = {"run_dir": str(folder / run), "model_path": str(load.model), "layers": load.layers}
    state = server.start(ServerParameters.from_values({**values, "dumps_at_once": 1, **parameters}))
    try:
        yield Served(load, state, samples, folder)
    finally:
        processes.stop_group(state)


@contextmanager
def rows_for(load: str, rows: int) -> Iterator[tuple[Workload, list[Sample], Path]]:
    """A load, its rows, and the folder in which they are, for as long as it is measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = workload(load, folder, rows)
        yield found, rows_of(found, folder / "rows.jsonl"), folder


@contextmanager
def served(load: str, rows: int, **parameters: Any) -> Iterator[Served]:
    """A server with the rows of one load."""
    with rows_for(load, rows) as found, serve(*found, **parameters) as bench:
        yield bench


def send(client: ServerClient, group: Sequence[Sample]) -> None:
    client.prefill(
        [s.input_ids for s in group], [f"plain-{s.index}-{time.time_ns()}" for s in group]
    )


@dataclass
class Cost:
    """Wall and CPU seconds of one measurement; CPU is client and server together."""

    wall_s: float
    cpu_s: float


def measure(
    work: Callable[[], None], state: server.ServerState | None = None, warm_bytes: int = 0
) -> Cost:
    """Cost of ``work``; ``warm_bytes`` are the memory that it will fill (files, page cache)."""
    warm_memory(warm_bytes)
    before, started = cpu_seconds(state), time.perf_counter()
    work()
    wall = time.perf_counter() - started
    return Cost(wall, cpu_seconds(state) - before)


def warm_memory(size: int) -> None:
    """Touch memory and give it back, so that the kernel has it at hand.

    A virtual machine gets memory from its host page by page at first touch, and may lose free
    memory to it again within seconds: writing a file then costs ten times its usual CPU time
    (measured: 70 ms instead of 7 for 29 MB), whoever writes it. That is not what is compared.
    """
    if size:
        with mmap.mmap(-1, size) as memory:
            for offset in range(0, size, mmap.PAGESIZE):
                memory[offset] = 1


def cpu_seconds(state: server.ServerState | None) -> float:
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in processes.members(state) if state else []:
        used = process.cpu_times()
        total += used.user + used.system
    return total


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio(above: "Sequence[Cost]", below: "Sequence[Cost]") -> float:
    """The median of the turns' ratios of wall time."""
    return median([a.wall_s / b.wall_s for a, b in zip(above, below, strict=True)])


def report(title: str, rows: Sequence[dict[str, Any]], out: str) -> None:
    """Print a table and write it as JSON."""
    import pandas

    with pandas.option_context("display.width", 200, "display.max_columns", 20):
        print(f"\n{title}\n{pandas.DataFrame(rows).to_string(index=False, float_format='%.3f')}")
    if out:
        facts = {"title": title, "cpus": psutil.cpu_count(), "rows": list(rows)}
        Path(out).write_text(json.dumps(facts, indent=1))


def arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """``--out FILE`` for the JSON, and the script's own numbers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", default="", help="write the figures as JSON")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()
