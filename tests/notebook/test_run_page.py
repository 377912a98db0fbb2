"""The page on top of a run's reports: what its jobs left, in one look."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from fakes.server import FakeServer
from make import jobs
from make.dumps import put_dump
from make.progress import progress
from make.rows import random_sample, write_rows
from nbformat.v4 import new_code_cell, new_notebook

from hslib.job import read_record
from hslib.notebook.report import write_reports
from hslib.notebook.report.index import write_index
from hslib.notebook.report.run_page import RunPage, read_run_page, run_command
from hslib.notebook.report.scrub import Scrubber
from hslib.parameters import ExtractionParameters
from hslib.server.endpoints import open_endpoints
from hslib.terminal import main

SAMPLES = [random_sample(i, 5 + i) for i in range(12)]


@pytest.fixture
def parameters(fake: FakeServer, tmp_path: Path) -> Callable[..., ExtractionParameters]:
    rows = write_rows(tmp_path / "rows.jsonl", SAMPLES)

    def make(**values: Any) -> ExtractionParameters:
        return ExtractionParameters.from_values(
            {
                "run_dir": str(tmp_path / "kimi"),
                "dataset_path": str(rows),
                "model_path": str(fake.model),
                "layers": "1,3,5",
                "server_url": fake.url,
                "dump_dir": str(fake.dumps),
                "max_attempts": 1,
                **values,
            }
        )

    return make


def facts(page: RunPage | None) -> dict[str, str]:
    assert page is not None
    return {fact.name: fact.text for fact in page.facts}


def tones(page: RunPage) -> dict[str, str]:
    return {fact.name: fact.tone for fact in page.facts}


def test_a_finished_run_says_what_it_was_and_what_comes_next(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    jobs.run(parameters())
    page = read_run_page(tmp_path / "kimi", {"03": "ok"})
    found = facts(page)
    assert page is not None
    assert (page.tone, page.verdict) == ("ok", "Finished: 12 of 12 rows are in the store.")
    assert found["rows"] == "12 asked for"
    assert found["store"].startswith(f"12 samples, {sum(s.num_tokens for s in SAMPLES)} tokens, ")
    assert found["boundaries"] == "1, 3, 5, final (post-norm)"
    assert "rows.jsonl" in found["dataset"] and "/" not in found["dataset"]
    assert "LlamaForCausalLM" in found["model"]
    assert "no error is above" in found["witness"] and tones(page)["witness"] == "ok"
    assert "SGLang 0.5.23" in found["versions"] and "torch" in found["versions"]
    assert "CPU cores" in found["hardware"]
    assert found["started"].endswith("UTC") and "tokens/s" in found["speed"]
    assert page.next_command.startswith("python -m hslib run 04 -p run_dir")
    later = read_run_page(tmp_path / "kimi", {"03": "ok", "04": "ok", "05": "ok"})
    assert later is not None and later.next_command.startswith("python -m hslib export")


def test_a_notebook_that_failed_makes_no_green_page(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    jobs.run(parameters())
    page = read_run_page(tmp_path / "kimi", {"03": "ok", "05": "failed"})
    assert (
        page is not None
        and page.tone == "failed"
        and "The last run of notebook 05 failed." in page.verdict
    )
    assert page.next_command == ""
    running = read_run_page(tmp_path / "kimi", {"03": "unfinished"})
    assert running is not None and running.tone == "ok", "its own job says that it is whole"


def test_failed_and_rejected_rows_are_coloured_and_reasons_counted(
    parameters: Callable[..., ExtractionParameters], fake: FakeServer, tmp_path: Path
) -> None:
    def spoil(rid: str, _states: np.ndarray, _attempt: int) -> int | None:
        return 500 if rid.startswith("hs-3-") else None

    fake.misbehave = spoil
    wanted = parameters(max_tokens=15, max_rejected_share=0.5, samples_per_request=1)
    jobs.run(wanted)
    page = read_run_page(tmp_path / "kimi")
    assert page is not None and page.tone == "failed"
    assert "1 failed" in page.verdict and "retry_failed" in page.verdict
    assert facts(page)["rejected"] == "1 (1 too_long)" and facts(page)["failed"].startswith(
        "1 (1 x "
    )
    assert tones(page)["rejected"] == "unfinished" and tones(page)["failed"] == "failed"
    assert page.next_command.startswith("python -m hslib run 03 ")
    assert "-p max_tokens 15" in page.next_command
    assert page.next_command.endswith("-p retry_failed True")


WITHOUT = {"boundary 3": "the layer has no input norm"}


@pytest.mark.parametrize(
    ("unwitnessed", "said"),
    [
        (
            WITHOUT,
            "States are NOT WITNESSED, as accept_unwitnessed allowed: boundary 3: the layer has no "
            "input norm (boundary 3).",
        ),
        (None, "States are not witnessed: written before layers were asked what they read."),
    ],
)
def test_states_that_no_layer_testifies_to_are_said_to_be_so_in_red(
    parameters: Callable[..., ExtractionParameters],
    fake: FakeServer,
    tmp_path: Path,
    unwitnessed: dict[str, str] | None,
    said: str,
) -> None:
    fake.stop()
    fake.start(unwitnessed=WITHOUT)
    witness = np.array([0.0025, np.nan, 0.0025, 0.0025])
    fake.dump = lambda rid, ids: put_dump(  # type: ignore[method-assign]
        fake.dumps, rid, ids, fake.states(ids), witness=witness
    )
    wanted = parameters(server_url=fake.url, accept_unwitnessed=True)
    job = jobs.prepare(wanted)
    assert "NOT WITNESSED" in job.facts()["states"]
    assert "NOT WITNESSED" in open_endpoints(wanted).facts()["canary request"]
    assert jobs.run(wanted).is_whole
    path = wanted.store_path / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["unwitnessed"] == WITHOUT
    path.write_text(json.dumps(manifest | {"unwitnessed": unwitnessed}))
    page = read_run_page(tmp_path / "kimi")
    assert page is not None
    assert (facts(page)["witness"], tones(page)["witness"]) == (said, "failed")
    assert said in write_index(tmp_path / "kimi").read_text()


def test_shards_make_one_page_and_a_line_each(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    store = str(tmp_path / "states")
    for shard in (0, 1, 10):
        run_dir = str(tmp_path / f"array/shard-{shard}")
        jobs.run(
            parameters(run_dir=run_dir, store_dir=store, num_shards=11, shard_index=shard, limit=11)
        )
    page = read_run_page(tmp_path / "array")
    assert page is not None
    assert page.tone == "failed", "eight of its eleven shards are not there"
    assert page.verdict.startswith("Finished: 3 of 3 rows are in the store. 8 of its shards")
    assert main(["status", str(tmp_path / "array")]) == 1
    assert facts(page)["store"].startswith("3 samples")
    assert [line[0] for line in page.parts] == ["shard", "shard-0", "shard-1", "shard-10"]
    write_reports(tmp_path / "array")
    assert (tmp_path / "array/index.html").exists()
    assert (tmp_path / "array/shard-10/index.html").exists()


def test_a_whole_array_is_green_and_what_else_lies_beside_it_is_not_of_it(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    """A trial in the folder itself, and another job's run below it."""
    store = str(tmp_path / "states")
    jobs.run(parameters(run_dir=str(tmp_path / "kimi"), store_dir=str(tmp_path / "trial"), limit=2))
    jobs.run(parameters(run_dir=str(tmp_path / "kimi/other"), store_dir=str(tmp_path / "o")))
    assert facts(read_run_page(tmp_path / "kimi"))["rows"] == "2 asked for"
    for shard in (0, 1):
        run_dir = str(tmp_path / f"kimi/shard-{shard}")
        jobs.run(parameters(run_dir=run_dir, store_dir=store, num_shards=2, shard_index=shard))
    page = read_run_page(tmp_path / "kimi")
    assert page is not None
    assert (page.tone, page.verdict) == ("ok", "Finished: 12 of 12 rows are in the store.")
    folder = tmp_path / "kimi"
    assert page.next_command == f"python -m hslib run 04 -p run_dir {folder} -p store_dir {store}"


def test_an_interrupted_run_says_what_is_left_and_a_dead_one_is_no_success(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    jobs.run(parameters())
    path = tmp_path / "kimi/progress.json"
    told = (("interrupted", "Interrupted", "unfinished"), ("running", "Not finished", "failed"))
    for state, word, tone in told:
        path.write_text(progress(state=state).model_dump_json())
        page = read_run_page(tmp_path / "kimi")
        assert page is not None and page.tone == tone
        assert page.next_command.startswith("python -m hslib run 03 ")
        assert page.verdict.startswith(word) and "60 are left" in page.verdict
        assert facts(page)["left"] == "60"


def test_a_clusters_replicas_get_a_line_each_without_their_hosts(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    jobs.run(parameters())
    replicas = [
        {"number": 0, "host": "node17", "state": "working", "ok": 1200, "samples_per_s": 1.5},
        {"number": 1, "host": "node18", "state": "given up: no GPU", "ok": 7, "samples_per_s": 0},
    ]
    path = tmp_path / "kimi/progress.json"
    path.write_text(progress(state="finished", replicas=replicas).model_dump_json())
    write_index(tmp_path / "kimi")
    page = BeautifulSoup((tmp_path / "kimi/index.html").read_text(), "html.parser")
    (table,) = page.select(".scrolls table")
    lines = [[cell.text for cell in line.select("th, td")] for line in table.select("tr")]
    assert lines == [
        ["replica", "state", "extracted", "samples/s"],
        ["0", "working", "1,200", "1.50"],
        ["1", "given up: no GPU", "7", "0.00"],
    ]
    assert "Replicas" in [heading.text for heading in page.select("h2")]
    assert "node17" not in page.text and "node18" not in page.text


def test_a_diagnosis_that_found_a_mismatch_is_not_green(tmp_path: Path) -> None:
    counted = {"samples_differing": 39, "samples_compared": 40, "rows_with_other_ids": 0}
    (tmp_path / "metrics.json").write_text(json.dumps(counted))
    page = read_run_page(tmp_path, {"01": "ok"})
    assert page is not None and page.tone == "failed"
    assert page.verdict == "Notebook 01 has found a mismatch: 39 of 40 samples differ."
    (tmp_path / "metrics.json").write_text(json.dumps({**counted, "samples_differing": 0}))
    page = read_run_page(tmp_path, {"01": "ok"})
    assert page is not None and page.tone == "ok"


def test_a_page_has_no_host_home_or_secret(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    jobs.run(parameters())
    path = tmp_path / "kimi/progress.json"
    told = "HTTP 503 of http://node17.lab:30000, Authorization: Bearer s3cr3tvalue in /home/ann/x"
    path.write_text(progress(state="failed", message=told).model_dump_json())
    write_index(tmp_path / "kimi", Scrubber(homes=("/home/ann",)))
    text = (tmp_path / "kimi/index.html").read_text()
    assert "HTTP 503" in text
    assert not [word for word in ("node17", "s3cr3tvalue", "/home/ann") if word in text]


def test_a_report_has_the_versions_of_the_run_and_not_of_the_place_where_it_is_made(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    jobs.run(parameters())
    record = read_record(tmp_path / "kimi")
    assert record is not None
    changed = record.model_copy(update={"versions": {"SGLang": "9.9.9"}})
    (tmp_path / "kimi/run.json").write_text(changed.model_dump_json())
    page = read_run_page(tmp_path / "kimi")
    assert facts(page)["versions"] == "SGLang 9.9.9"


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job holds the run, and has not told of itself."""
    monkeypatch.setattr("hslib.job.watch.job_since", lambda _run: 2e9)


@pytest.mark.usefixtures("starting")
def test_a_run_whose_server_starts_is_at_work(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    first = read_run_page(tmp_path / "new", {"03": "running"})
    assert first is not None and first.tone == "running"
    assert first.verdict.startswith("At work: a server is started")
    jobs.run(parameters())
    again = read_run_page(tmp_path / "kimi", {"03": "running"})
    assert again is not None and (again.tone, again.next_command) == ("running", "")
    assert again.verdict.endswith("Until now 12 of 12 rows are in the store.")


def write_executed(path: Path, *injected: str) -> None:
    cell = new_code_cell("\n".join(injected), execution_count=1)
    cell.metadata.tags = ["injected-parameters"]
    path.parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=[cell]), path)


def test_notebooks_without_a_job_say_what_they_were_given_and_what_comes_next(
    parameters: Callable[..., ExtractionParameters], tmp_path: Path
) -> None:
    failed = tmp_path / "failed"
    write_executed(failed / "03_extraction.ipynb", "run_dir = 'failed'", "model_path = 'm/kimi'")
    page = read_run_page(failed, {"03": "failed"})
    assert page is not None and page.tone == "failed"
    assert page.verdict.startswith("Notebook 03 failed; no job")
    assert facts(page) == {"model": "m/kimi"}
    assert page.next_command == "python -m hslib run 03 -p run_dir failed -p model_path m/kimi"
    jobs.run(parameters())
    store = tmp_path / "kimi/store"
    write_executed(tmp_path / "only/04_statistics.ipynb", f"store_dir = '{store}'")
    page = read_run_page(tmp_path / "only", {"04": "ok"})
    assert page is not None and page.tone == "ok"
    assert facts(page)["store"].startswith("12 samples")
    assert "LlamaForCausalLM" in facts(page)["model"] and facts(page)["dataset"] == "rows.jsonl"
    assert page.next_command == f"python -m hslib run 05 -p store_dir {store}"


def test_without_a_job_there_is_no_such_page(tmp_path: Path) -> None:
    assert read_run_page(tmp_path) is None
    page = BeautifulSoup(write_index(tmp_path).read_text(), "html.parser")
    assert page.select("section") == []


def test_a_command_is_quoted_for_a_shell() -> None:
    addressed = {"store_dir": "s3://b/p", "ray_address": "node17:6379"}
    assert run_command("03", addressed).endswith(
        "-p store_dir STORE_DIR -p ray_address RAY_ADDRESS"
    )
    command = run_command("03", {"limit": 5, "run_dir": "a b", "server_url": ["x", "y"]})
    assert command == (
        'python -m hslib run 03 -p limit 5 -p run_dir \'a b\' -y \'{"server_url": ["x", "y"]}\''
    )
