"""(h) The driver with 64 replicas and 1,000,000 rows: how busy are they, and what does a row cost?

    python tests/bench/cluster_scale.py

Real Ray, data set, plan, shards and the run that hands them out; replicas are stubs that take the
time which the case's servers took (2,000 tokens/s) for each token, and store nothing. To end
today, a row has a 32nd of the case's tokens (67 of 2,132 on average, as widely spread) and a
second is shortened ``--faster`` times; the driver then works that many times harder than at the
case's pace.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from common import arguments, report, tiny_models

from hslib.cluster.cluster import Cluster
from hslib.cluster.opening import open_cluster
from hslib.cluster.replica import ReplicaFacts, ShardReport
from hslib.cluster.shard_run import ShardRun
from hslib.cluster.shards import Shard
from hslib.dataset import Dataset, Limits
from hslib.errors import JobError
from hslib.job.plan import plan_job
from hslib.job.prepare import Job, make_manifest
from hslib.job.progress import Progress, ProgressState
from hslib.model import read_model
from hslib.parameters import ExtractionParameters
from hslib.server.check import ServerCheck
from hslib.server.client import ServerSettings
from hslib.server.plugin_info import PluginInfo
from hslib.store import JournalState

SHORTER = 32
CASE_TOKENS_PER_S = 2000.0  # of one server, between the case's 1,281 and 2,689
CASE_TOKENS_PER_REQUEST = 2048


class StubReplica:
    """Takes its time and stores nothing. ``extra_args`` = [tokens a second]."""

    def __init__(self, number: int, parameters: ExtractionParameters) -> None:
        self.number, self.rate = number, float(parameters.extra_args[0])
        self.model = parameters.model_path
        self.busy_s, self.began, self.ended, self.rows = 0.0, 0.0, 0.0, 0

    def place(self) -> str:
        return "stub"

    def start(self) -> ReplicaFacts:
        return ReplicaFacts("stub", os.getpid(), proof_of(Path(self.model)), 4096, 1 << 40)

    def extract(
        self, _parameters: ExtractionParameters, _manifest: Any, shard: Shard
    ) -> ShardReport:
        tokens = sum(sample.num_tokens for sample in shard.samples)
        started = time.monotonic()
        self.began = self.began or started
        # sleep is never short of its time; what it was too long counts as work
        time.sleep(tokens / self.rate)
        self.ended = time.monotonic()
        self.last_s = self.ended - started
        self.busy_s += self.last_s
        self.rows += len(shard.samples)
        last = shard.samples[-1].index
        return ShardReport(len(shard.samples), tokens, tokens, last)

    def told(self, _name: str) -> None:
        """Nothing is said of a shard before its end, as often as a replica does."""
        time.sleep(0.5)

    def end(self) -> tuple[float, float, float, float, int]:
        return self.began, self.ended, self.busy_s, self.last_s, self.rows

    def stop(self, _run: str) -> None: ...

    def close(self) -> str:
        return ""


def proof_of(model: Path) -> ServerCheck:
    found = read_model(model)
    plugin = PluginInfo.model_construct(
        model_path=str(model),
        model_class=found.architecture,
        num_layers=found.num_layers,
        hidden_size=found.hidden_size,
        vocab_size=found.vocab_size,
        dtype="bfloat16",
        boundaries=(1, 3, 5),
        sglang_version="",
        plugin_version="",
    )
    return ServerCheck(plugin, ServerSettings.model_construct(max_req_input_len=4096))


def write_rows(path: Path, count: int) -> None:
    """Log-normal lengths as the case's log shows them (median 1,283; 297 to 4,710)."""
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(np.log(1600), 0.76, count), 32, 8192) // SHORTER
    with path.open("w") as file:
        for length in lengths.astype(int):
            ids = rng.integers(3, 500, max(1, length)).tolist()
            file.write(json.dumps({"input_ids": ids}) + "\n")


def main() -> None:
    chosen = arguments(__doc__ or "", rows=1_000_000, replicas=64, faster=40.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.jsonl", chosen.rows)
        parameters = ExtractionParameters(
            run_dir=str(folder / "run"),
            dataset_path=str(folder / "rows.jsonl"),
            model_path=str(tiny_models.build("llama", folder / "model")),
            layers="1,3,5",
            ray_address="local",
            num_replicas=chosen.replicas,
            tokens_per_request=CASE_TOKENS_PER_REQUEST // SHORTER,
            extra_args=[str(CASE_TOKENS_PER_S / SHORTER * chosen.faster)],
        )
        cluster = open_cluster(parameters, print, StubReplica)
        try:
            report("(h) the driver at scale", [measure(parameters, cluster)], chosen.out)
        finally:
            cluster.close()


def measure(parameters: ExtractionParameters, cluster: Cluster) -> dict[str, Any]:
    dataset = Dataset(parameters.dataset_source, Limits(512, 4096))
    started = time.perf_counter()
    survey = dataset.survey()
    survey_s = time.perf_counter() - started
    plan = plan_job(
        survey,
        JournalState({}, {}, {}),
        [],
        shard=(0, 1),
        retry_failed=False,
        state_bytes_per_token=512,
        stored_bytes_per_token=512,
    )
    model = read_model(parameters.model_folder)
    manifest = make_manifest(parameters, cluster, model, survey)
    job = Job(parameters, dataset, survey, plan, manifest, frozenset())
    memory: list[float] = []
    process = psutil.Process()
    planned_mb = process.memory_info().rss / 1e6
    progress = Progress(
        parameters.run_path,
        ProgressState(asked=plan.num_rows, failed=0, rejected=0, already_done=0, stored=0),
        plan.todo_tokens,
        show=lambda _state: memory.append(process.memory_info().rss / 1e6),
    )
    run = ShardRun(cluster, job, progress)
    cpu, wall = time.process_time(), time.perf_counter()
    with progress:
        assert run.run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    ends = ray.get([replica.actor.end.remote() for replica in cluster.replicas])
    rows = sum(end[4] for end in ends)
    if rows != len(survey.rows):
        raise JobError(f"{rows} rows were handed out, not {len(survey.rows)}")
    first, last = min(end[0] for end in ends), max(end[1] for end in ends)
    longest_last_shard = max(end[3] for end in ends)
    busy = [end[2] / (last - longest_last_shard - first) for end in ends]
    return {
        "replicas": len(ends),
        "rows": rows,
        "wall_s": wall,
        "least_busy": min(busy),
        "median_busy": statistics.median(busy),
        "last_shard_s": longest_last_shard,
        "ends_apart_s": last - min(end[1] for end in ends),
        "driver_cpu_ms_a_row": cpu / rows * 1e3,
        "survey_ms_a_row": survey_s / rows * 1e3,
        "planned_mb": planned_mb,
        "quarter_mb": memory[len(memory) // 4],
        "end_mb": memory[-1],
    }


if __name__ == "__main__":
    main()
