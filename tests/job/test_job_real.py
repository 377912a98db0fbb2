"""The job on a real server: all rows, bad rows, resume, and what must never reach the server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fakes.bucket import Bucket
from make.dumps import BOUNDARIES
from make.jobs import run
from make.reference import reference_states, relative_errors
from make.rows import random_sample, write_rows

from hslib import extract
from hslib.errors import DatasetError, DumpError, JobError, ServerError, StoreError
from hslib.files import Lock
from hslib.job.progress import read_progress
from hslib.parameters import ExtractionParameters
from hslib.server import launch as server
from hslib.server.client import ServerClient
from hslib.server.dumps import Dump, DumpDir, request_id
from hslib.server.endpoints import open_endpoints
from hslib.server.validate import validate
from hslib.store import Store, read_journal

SAMPLES = [random_sample(i, n, seed=5) for i, n in enumerate((9, 130, 1, 40, 40, 77, 3, 200))]


@pytest.fixture
def parameters(
    tmp_path: Path, llama_server: server.ServerState, model_of: Callable[[str], Path]
) -> Callable[..., ExtractionParameters]:
    def make(**values: Any) -> ExtractionParameters:
        defaults = {
            "run_dir": str(tmp_path / "run"),
            "dataset_path": str(tmp_path / "rows.jsonl"),
            "model_path": str(model_of("llama")),
            "layers": ",".join(map(str, BOUNDARIES)),
            "server_url": llama_server.url,
            "dump_dir": llama_server.dump_dir,
            "dump_timeout_s": 20.0,
        }
        return ExtractionParameters.from_values({**defaults, **values})

    write_rows(tmp_path / "rows.jsonl", SAMPLES)
    return make


class Sent:
    """The request ids that reached the server, canaries left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rids: list[str] = []
        self.rows: list[np.ndarray] = []
        send = ServerClient.prefill

        def spy(client: ServerClient, rows: Any, rids: Any = None, replica: Any = None) -> None:
            if rids is None or not rids[0].startswith("hs-999999999-"):
                self.rids += rids or [""]
                self.rows += rows
            send(client, rows, rids, replica)

        monkeypatch.setattr(ServerClient, "prefill", spy)

    def indices(self) -> list[int]:
        return sorted(int(rid.split("-")[1]) for rid in self.rids)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def test_every_row_is_stored_with_its_own_states(
    parameters: Any, model_of: Callable[[str], Path]
) -> None:
    result = run(parameters())
    assert (result.totals.ok, result.totals.reconciles) == (len(SAMPLES), True)
    store = Store(parameters().store_path)
    assert store.verify(deep=True).clean
    for sample in SAMPLES:
        stored = store[sample.index]
        assert stored.input_ids.tolist() == sample.input_ids.tolist()
        assert stored.loss_mask.tolist() == sample.loss_mask.tolist()
        references = reference_states(model_of("llama"), sample.input_ids)
        for boundary in BOUNDARIES:
            assert relative_errors(stored.layer(boundary), references)[boundary] < 0.03
        assert relative_errors(stored.final, references)[-1] < 0.03


def test_a_bucket_takes_the_rows_of_a_real_server(parameters: Any, bucket: Bucket) -> None:
    run(parameters(store_dir=bucket.url))
    store = Store(bucket.url)
    assert store.verify(deep=True).clean
    ids = [tokens.input_ids.tolist() for tokens in store.tokens()]
    assert ids == [sample.input_ids.tolist() for sample in SAMPLES]


def test_nothing_is_left_in_the_dump_directory(parameters: Any) -> None:
    run(parameters())
    assert [n for n in DumpDir(parameters().dump_paths[0]).names() if n.startswith("hs-")] == []


def test_a_second_run_sends_nothing(parameters: Any, sent: Sent) -> None:
    run(parameters())
    assert sent.indices() == [s.index for s in SAMPLES]
    sent.rids.clear()
    result = run(parameters())
    assert sent.rids == []
    assert (result.totals.ok, result.totals.already_done) == (0, len(SAMPLES))


def spoil(store: Path) -> None:
    """Delete one sample's file and flip a byte in another's."""
    (store / "samples/00000/00000003.safetensors").unlink()
    path = store / "samples/00000/00000005.safetensors"
    data = bytearray(path.read_bytes())
    data[-2000] ^= 0xFF
    path.write_bytes(data)


def test_a_deep_resume_redoes_just_what_is_missing_or_changed(parameters: Any, sent: Sent) -> None:
    run(parameters())
    sent.rids.clear()
    spoil(parameters().store_path)
    result = run(parameters(resume_check="deep"))
    assert sent.indices() == [3, 5]
    assert (result.totals.ok, result.totals.already_done) == (2, len(SAMPLES) - 2)
    assert Store(parameters().store_path).verify(deep=True).clean


def test_a_size_resume_redoes_what_is_missing(parameters: Any, sent: Sent) -> None:
    run(parameters())
    sent.rids.clear()
    spoil(parameters().store_path)
    run(parameters())
    assert sent.indices() == [3]


BAD_ROWS: dict[str, dict[str, Any]] = {
    "no_ids": {"messages": []},
    "empty": {"input_ids": []},
    "not_integers": {"input_ids": [1, 2.5]},
    "out_of_vocabulary": {"input_ids": [5, 512]},
    "mask_length": {"input_ids": [5, 6], "loss_mask": [1]},
    "mask_values": {"input_ids": [5, 6], "loss_mask": [1, 7]},
    "too_long": {"input_ids": [5] * 3000},
    "duplicate_id": {"id": "row-0", "input_ids": [5, 6]},
}


def test_bad_rows_are_named_and_never_sent_and_the_others_are_stored(
    parameters: Any, sent: Sent, tmp_path: Path, llama_server: server.ServerState
) -> None:
    with (tmp_path / "rows.jsonl").open("a") as rows:
        for row in BAD_ROWS.values():
            rows.write(json.dumps(row) + "\n")
        rows.write('{"input_ids": [5, 6')
    wanted = parameters(max_rejected_share=0.6)
    result = run(wanted)
    assert sent.indices() == [s.index for s in SAMPLES]
    assert max(int(row.max()) for row in sent.rows) < 512
    assert (result.totals.ok, result.totals.rejected) == (len(SAMPLES), len(BAD_ROWS) + 1)
    assert result.totals.reconciles
    journal = list(read_journal(parameters().store_path / "journal.jsonl"))
    rejected = {e.index: e.reason for e in journal if e.status == "rejected"}
    reasons = [*BAD_ROWS, "not_json"]
    assert [rejected[len(SAMPLES) + i].split(":")[0] for i in range(len(reasons))] == reasons
    assert "9 (1 no_ids, 1 empty, 1 not_integers, " in result.sentence()
    assert httpx.get(f"{llama_server.url}/health").status_code == 200
    run(wanted)
    again = list(read_journal(parameters().store_path / "journal.jsonl"))
    assert len(again) == len(journal), "a second run repeats no line"


def test_strict_stops_at_the_first_bad_row_before_anything_is_sent(
    parameters: Any, sent: Sent, tmp_path: Path
) -> None:
    with (tmp_path / "rows.jsonl").open("a") as rows:
        rows.write('{"input_ids": []}\n')
    with pytest.raises(
        DatasetError,
        match="strict is set: 1 empty; the first: row 8",
    ):
        run(parameters(strict=True))
    assert sent.rids == []


def test_too_many_masks_of_zeros_stop_the_job(parameters: Any, sent: Sent, tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 6], "loss_mask": [0, 0]}] * 3
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DatasetError, match="3 of 3 rows"):
        run(parameters())
    assert sent.rids == []


def test_a_resume_with_other_layers_is_refused_with_the_field(parameters: Any) -> None:
    run(parameters())
    path = parameters().store_path / "manifest.json"
    path.write_text(path.read_text().replace("  5\n", "  4\n", 1))
    with pytest.raises(StoreError, match="boundaries differ"):
        run(parameters())


def test_layers_that_the_server_does_not_capture_are_refused(parameters: Any) -> None:
    with pytest.raises(ServerError, match='set layers = "1,3,5"'):
        run(parameters(layers="1,2,5"))


def test_another_model_than_the_served_one_is_refused(
    parameters: Any, model_of: Callable[[str], Path]
) -> None:
    with pytest.raises(ServerError, match=r"config\.json differs"):
        run(parameters(model_path=str(model_of("qwen3"))))


def test_appended_rows_are_new_work_and_reordered_ones_are_refused(
    parameters: Any, sent: Sent, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", SAMPLES[:6])
    run(parameters())
    sent.rids.clear()
    write_rows(tmp_path / "rows.jsonl", SAMPLES)
    run(parameters())
    assert sent.indices() == [6, 7]
    sent.rids.clear()
    write_rows(tmp_path / "rows.jsonl", [SAMPLES[1], SAMPLES[0], *SAMPLES[2:]])
    with pytest.raises(DatasetError, match="2 moved to another index"):
        run(parameters())
    assert sent.rids == []
    run(parameters(on_changed_rows="redo"))
    assert sent.indices() == [0, 1]
    assert Store(parameters().store_path)[0].input_ids.tolist() == SAMPLES[1].input_ids.tolist()
    assert Store(parameters().store_path).verify(deep=True).clean


def test_shards_split_the_rows_between_them(parameters: Any, sent: Sent) -> None:
    for shard in range(3):
        result = run(parameters(shard_index=shard, num_shards=3))
        assert result.totals.reconciles
    assert sent.indices() == [s.index for s in SAMPLES]
    assert len(Store(parameters().store_path)) == len(SAMPLES)
    sent.rids.clear()
    run(parameters(num_shards=1))  # another split neither loses nor repeats a row
    assert sent.rids == []


def test_a_limit_takes_the_first_rows(parameters: Any, sent: Sent) -> None:
    result = run(parameters(limit=3))
    assert sent.indices() == [0, 1, 2]
    assert result.totals.asked == 3


def test_a_second_job_in_the_same_dump_directory_is_refused(parameters: Any) -> None:
    fleet = open_endpoints(parameters())
    job = extract.prepare(parameters(), fleet)
    with (
        Lock(fleet.disks()["dumps"] / ".lock", "the dump directory"),
        pytest.raises(JobError, match="in use by another job"),
    ):
        extract.run(job, fleet)


def test_a_row_whose_dump_stays_wrong_fails_with_its_reason_and_is_retried_when_asked(
    parameters: Any, monkeypatch: pytest.MonkeyPatch, sent: Sent
) -> None:
    def refuse_sample_3(dump: Dump, sample: Any, expected: Any) -> Any:
        if sample.index == 3:
            raise DumpError("made wrong by the test", check="finite", index=3)
        return validate(dump, sample, expected)

    with monkeypatch.context() as patch:
        patch.setattr("hslib.server.endpoint.validate", refuse_sample_3)
        result = run(parameters())
    assert list(result.failed) == [3]
    assert "made wrong by the test" in result.failed[3]
    assert sent.indices().count(3) == 4, "in company, then max_attempts by itself"
    assert len(set(sent.rids)) == len(sent.rids), "no id is used twice"
    with pytest.raises(JobError, match="retry_failed"):
        result.require_whole()
    state = read_progress(parameters().run_path)
    assert state is not None
    assert (state.failed, state.reasons) == (1, {"finite": 1})
    sent.rids.clear()
    assert list(run(parameters()).failed) == [3]
    assert sent.rids == []
    assert run(parameters(retry_failed=True)).is_whole
    assert sent.indices() == [3]


def test_log_and_progress_file_tell_the_truth(parameters: Any) -> None:
    run(parameters())
    state = read_progress(parameters().run_path)
    assert state is not None
    assert (state.state, state.ok, state.stored) == ("finished", len(SAMPLES), len(SAMPLES))
    assert state.num_tokens == sum(s.num_tokens for s in SAMPLES)
    entries = Store(parameters().store_path).entries.values()
    assert state.size_bytes == sum(e.size_bytes for e in entries)
    last = (parameters().run_path / "extraction.log").read_text().splitlines()[-1]
    assert f"{len(SAMPLES)} extracted ({len(SAMPLES)} total)" in last
    assert "failed: 0" in last


def test_an_id_with_dots_and_slashes_writes_nothing_outside(
    llama_server: server.ServerState,
) -> None:
    root = Path(llama_server.dump_dir)
    before = {p.name for p in root.parent.iterdir()}
    with server.client_of(llama_server) as client:
        for rid in ("../../evil", "../evil", "/tmp/evil-hs", ".hidden"):
            client.prefill([np.array([5, 6, 7])], [rid])
        sample = random_sample(1000, 4)
        rid = request_id(sample, 1)
        client.prefill([sample.input_ids], [rid])
        DumpDir(root).wait(rid, 10)  # the writer works in order: the others are behind us
    after = {p.name for p in root.parent.iterdir()}
    assert not {name for name in after - before if "evil" in name}
    assert not Path("/tmp/evil-hs").exists()
    assert not [name for name in DumpDir(root).names() if "evil" in name or "hidden" in name]
