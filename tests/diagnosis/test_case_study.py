"""The case study's failure on a real server in its mode, and the cure on the same server.

The server names dumps by its own counter. A client that predicts the counter files other
samples' states as soon as anything else, such as a warm-up or a leftover, has moved it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from make.dumps import BOUNDARIES, put_dump
from make.reference import reference_states, relative_errors
from make.rows import random_sample, write_rows

from hslib import extract
from hslib.dataset import Sample
from hslib.errors import JobError, ServerError
from hslib.job.prepare import Job
from hslib.parameters import ExtractionParameters
from hslib.server import launch as server
from hslib.server.client import ServerClient
from hslib.server.dumps import DumpDir
from hslib.server.endpoints import Endpoints, open_endpoints
from hslib.store import Store

SAMPLES = [random_sample(i, n, seed=3) for i, n in enumerate((30, 12, 47, 12, 25, 8))]


@pytest.fixture
def dumps(llama_server: server.ServerState) -> Iterator[DumpDir]:
    found = DumpDir(llama_server.dump_dir)
    found.clear(found.names())
    yield found
    found.clear(found.names())


@pytest.fixture
def parameters(
    tmp_path: Path, llama_server: server.ServerState, model_of: Callable[[str], Path]
) -> Callable[..., ExtractionParameters]:
    def make(**values: Any) -> ExtractionParameters:
        defaults = {
            "run_dir": str(tmp_path / "run"),
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", SAMPLES)),
            "model_path": str(model_of("llama")),
            "layers": ",".join(map(str, BOUNDARIES)),
            "server_url": llama_server.url,
            "dump_dir": llama_server.dump_dir,
            "scan_scope": "directory",
            "dump_timeout_s": 20.0,
        }
        return ExtractionParameters.from_values({**defaults, **values})

    return make


def predict_the_counter(client: ServerClient, dumps: DumpDir) -> dict[int, torch.Tensor]:
    """What the case study's client did: send sample n, wait for ``req_{first + n}``, file it."""
    client.prefill([SAMPLES[0].input_ids])  # a probe, to learn the counter
    first = max(int(name.split("_")[1]) for name in dumps.names() if name.startswith("req_")) + 1
    filed = {}
    for number, sample in enumerate(SAMPLES):
        if number == 2:
            client.prefill([SAMPLES[1].input_ids[:1]])  # a health check of one token
        client.prefill([sample.input_ids])
        name = f"req_{first + number}"
        dumps.wait(name, 10)
        bits = dumps.load(name).hidden_states.copy()
        filed[sample.index] = torch.from_numpy(bits).view(torch.bfloat16)
    return filed


def is_right(model: Path, sample: Sample, states: torch.Tensor) -> bool:
    if len(states) != sample.num_tokens:
        return False
    references = reference_states(model, sample.input_ids)
    return relative_errors(states[:, 1], references)[BOUNDARIES[1]] < 0.02


def test_predicting_the_counter_files_other_samples_states(
    llama_server: server.ServerState, dumps: DumpDir, model_of: Callable[[str], Path]
) -> None:
    leftover = random_sample(99, 5)
    states = torch.randn(5, 4, 64).to(torch.bfloat16)
    put_dump(dumps.root, "req_0", leftover.input_ids, states)
    with server.client_of(llama_server) as client:
        filed = predict_the_counter(client, dumps)
    right = [i for i, states in filed.items() if is_right(model_of("llama"), SAMPLES[i], states)]
    assert right == [0, 1], "from the foreign request on, every sample gets the one before it"
    assert len(filed[2]) == 1, "sample 2 got the health check"
    assert len(filed[3]) == SAMPLES[2].num_tokens


def run_job(parameters: ExtractionParameters) -> tuple[Job, extract.Result, Endpoints]:
    fleet = open_endpoints(parameters)
    job = extract.prepare(parameters, fleet)
    return job, extract.run(job, fleet), fleet


def test_clear_and_scan_on_the_same_server_stores_all_right(
    dumps: DumpDir, parameters: Any, model_of: Callable[[str], Path]
) -> None:
    stale = torch.randn(30, 4, 64).to(torch.bfloat16)
    for name in ("req_0", "req_7", "req_100"):
        put_dump(dumps.root, name, SAMPLES[0].input_ids, stale)
    _, result, _ = run_job(parameters())
    assert result.is_whole
    store = Store(parameters().store_path)
    assert store.verify(deep=True).clean
    assert list(store.entries) == [s.index for s in SAMPLES]
    for sample in SAMPLES:
        assert is_right(model_of("llama"), sample, store[sample.index].hidden_states)


@pytest.mark.usefixtures("dumps")
def test_a_foreign_request_in_between_is_an_error_that_says_so(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's prefill between the clear and the scan: two dumps, and neither is filed."""
    send = ServerClient.prefill

    def with_company(self: ServerClient, rows: Any, rids: Any = None, *more: Any) -> None:
        send(self, rows, rids, *more)
        if rids is None and len(rows[0]) == SAMPLES[2].num_tokens:
            send(self, [SAMPLES[1].input_ids[:3]], None)

    monkeypatch.setattr(ServerClient, "prefill", with_company)
    _, result, _ = run_job(parameters(max_attempts=2))
    assert list(result.failed) == [2]
    assert "2 dumps appeared after one request: somebody else uses this server" in result.failed[2]
    assert "one dump of 47 tokens" in result.failed[2]
    assert result.totals.ok == len(SAMPLES) - 1
    with pytest.raises(JobError, match="1 failed"):
        result.require_whole()
    log = (parameters().run_path / "extraction.log").read_text()
    assert "[2] try 1: 2 dumps appeared" in log
    assert "failed: 1" in log.splitlines()[-1]


@pytest.mark.usefixtures("dumps")
def test_directory_scope_on_a_server_that_uses_our_names_is_refused(parameters: Any) -> None:
    fleet = open_endpoints(parameters())
    member = fleet.members[0]
    plugin = member.check.plugin.model_copy(update={"dump_all": False})
    with pytest.raises(ServerError, match="dump_all = True"):
        replace(member, check=replace(member.check, plugin=plugin))
