"""Jobs into a bucket, and what reads it: the engine, killed and refused, statistics, exports."""

import logging
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from fakes.bucket import KEY, SECRET, TOKEN, Bucket, Fate, Meddler
from fakes.server import SAMPLES, FakeServer, assert_store_is_right
from make import jobs
from make.jobs import run
from make.rows import demo_samples, write_rows
from make.stores import model_store
from make.waits import wait_until

from hslib import demo, diagnosis, extract
from hslib.errors import StoreError
from hslib.export.export import export_store, read_rows
from hslib.export.specforge import SpecForgeFormat
from hslib.export.speculators import SpeculatorsFormat
from hslib.job.progress import read_progress
from hslib.parameters import DiagnosisParameters, ExtractionParameters
from hslib.server.endpoints import open_endpoints
from hslib.stats import measure
from hslib.store import Store
from hslib.store.bucket import lock as objectlock
from hslib.terminal import main


@pytest.fixture
def wanted(fake: FakeServer, bucket: Bucket, tmp_path: Path) -> ExtractionParameters:
    return ExtractionParameters.from_values(
        {
            "run_dir": str(tmp_path / "run"),
            "store_dir": bucket.url,
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", SAMPLES)),
            "model_path": str(fake.model),
            "layers": "1,3,5",
            "server_url": fake.url,
            "dump_dir": str(fake.dumps),
            "concurrency": 2,
            "samples_per_request": 2,
        }
    )


def sent(fake: FakeServer) -> list[int]:
    """The rows that were asked for, canaries left out."""
    rows = sorted({int(rid.split("-")[1]) for rid in fake.requests})
    return [row for row in rows if row < len(SAMPLES)]


def test_a_job_into_a_bucket_is_whole_and_a_second_run_sends_nothing(
    fake: FakeServer, wanted: ExtractionParameters
) -> None:
    assert run(wanted).is_whole
    assert_store_is_right(wanted.store_path)
    state = read_progress(wanted.run_path)
    assert state is not None
    assert (state.ok, list(state.free_bytes)) == (len(SAMPLES), ["dumps"])
    fake.requests.clear()
    result = run(wanted)
    assert sent(fake) == []
    assert (result.totals.ok, result.totals.already_done) == (0, len(SAMPLES))


def test_no_credential_is_in_any_file(
    wanted: ExtractionParameters,
    bucket: Bucket,
    meddler: Meddler,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither of a job that went well nor of one that was refused."""
    with caplog.at_level(logging.DEBUG, "hslib"):
        meddler.judge = lambda method, path, _body: (
            (403, "SignatureDoesNotMatch") if method == "PUT" and "0000011-" in path else "pass"
        )
        with pytest.raises(StoreError, match="AWS_SECRET_ACCESS_KEY") as caught:
            run(wanted)
        meddler.judge = lambda *_: "pass"
        assert run(wanted).is_whole
        Store(bucket.url).verify(deep=True)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    written += [bucket.objects.get(name) for name in bucket.names()]
    told = "".join(traceback.format_exception(caught.value))  # a failed notebook holds it
    written += [told.encode(), caplog.text.encode()]
    assert len(bucket.names()) >= len(SAMPLES) + 2
    assert any(b"SignatureDoesNotMatch" in data for data in written)
    for secret in (KEY, SECRET, TOKEN):
        assert not [data for data in written if secret.encode() in data]


@pytest.mark.slow
def test_a_job_that_is_killed_in_an_upload_goes_on_where_it_was(
    fake: FakeServer,
    wanted: ExtractionParameters,
    bucket: Bucket,
    meddler: Meddler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uploading: list[str] = []

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "PUT" and "samples/00000/00000007" in path:
            uploading.append(path)
            time.sleep(2.0)
            return "cut"
        return "pass"

    meddler.judge = judge
    job = jobs.start(wanted)
    wait_until("row 7 is being uploaded", lambda: bool(uploading), 60)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    meddler.judge = lambda *_: "pass"
    store = Store(bucket.url)
    done = set(store.entries)
    assert 7 not in done
    assert len(done) < len(SAMPLES)
    assert store.verify(deep=True).clean, "what is marked done is there"
    fake.requests.clear()
    monkeypatch.setattr(objectlock, "RENEW_S", 0.3)
    monkeypatch.setattr(objectlock, "STALE_S", 10.0)
    result = run(wanted)
    assert result.is_whole
    assert result.totals.already_done == len(done)
    assert set(sent(fake)) == {s.index for s in SAMPLES} - done
    assert_store_is_right(wanted.store_path)


@pytest.mark.slow
def test_a_bucket_that_refuses_stops_the_job_and_the_next_run_goes_on(
    wanted: ExtractionParameters, bucket: Bucket, meddler: Meddler
) -> None:
    uploads: list[str] = []

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "PUT" and "samples/" in path:
            uploads.append(path)
            if len(uploads) > 5:
                return (403, "AccessDenied")
        return "pass"

    meddler.judge = judge
    with pytest.raises(StoreError, match="s3:ListBucket"):
        run(wanted)
    state = read_progress(wanted.run_path)
    assert state is not None
    assert state.state == "failed"
    assert "AccessDenied" in state.message
    assert len(Store(bucket.url)) == 5
    meddler.judge = lambda *_: "pass"
    assert run(wanted).totals.already_done == 5
    assert_store_is_right(wanted.store_path)


@pytest.mark.slow
def test_a_resume_redoes_what_somebody_overwrote(
    fake: FakeServer, wanted: ExtractionParameters, bucket: Bucket
) -> None:
    run(wanted)
    entries = Store(bucket.url).entries
    same_size = bytearray(bucket.objects.get(entries[3].file))
    same_size[-40] ^= 0xFF
    bucket.objects.put(entries[3].file, bytes(same_size))
    bucket.objects.put(entries[5].file, b"other")
    fake.requests.clear()
    assert run(wanted).is_whole
    assert sent(fake) == [3, 5]
    assert_store_is_right(wanted.store_path)
    assert {e.file for e in Store(bucket.url).entries.values()}.isdisjoint(
        {entries[3].file, entries[5].file}
    )
    assert len(bucket.names("quarantine/")) == 2


def test_a_bucket_is_proven_before_a_server_is_started(
    wanted: ExtractionParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_args: Any) -> None:
        pytest.fail("a server was started")

    monkeypatch.setattr("hslib.server.launch.start", started)
    values = {"server_url": "", "store_dir": "s3://no-such-bucket/states"}
    with pytest.raises(StoreError, match="create the bucket"):
        open_endpoints(wanted.model_copy(update=values))


@pytest.mark.slow
def test_shards_write_to_one_bucket(wanted: ExtractionParameters) -> None:
    planned = []
    for shard in range(2):
        part = wanted.model_copy(update={"shard_index": shard, "num_shards": 2})
        fleet = open_endpoints(part)
        planned.append((extract.prepare(part, fleet), fleet))
    for job, fleet in planned:
        assert extract.run(job, fleet).is_whole
    assert_store_is_right(wanted.store_path)


@pytest.mark.slow
def test_what_reads_a_directory_reads_a_bucket(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Statistics, exports, diagnosis and the terminal give the same of both."""
    local = model_store(tmp_path / "store", demo.model_path(), demo_samples(6, 80), (2, 5, 7))
    url = bucket.upload(tmp_path / "store")
    ours, theirs = measure(Store(url)), measure(local)
    assert ours.samples.equals(theirs.samples)
    assert ours.layers.equals(theirs.layers)
    for trainer in (SpeculatorsFormat(), SpecForgeFormat()):
        folders = [
            tmp_path / f"{trainer.drafter.trainer}-{place}" for place in ("bucket", "directory")
        ]
        for store, out in zip((Store(url), local), folders, strict=True):
            export_store(store, out, trainer, demo.model_path(), draft_vocab_size=100)
        files = [row.file for row in read_rows(folders[0]).values()]
        assert len(files) == 6
        for file in [*files, *(p.name for p in folders[1].iterdir() if p.suffix == ".npy")]:
            assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()
    found = diagnosis.run(DiagnosisParameters(store_dir=url))
    assert found.verdict.num_compared == 6
    assert main(["verify", url]) == 0
    assert main(["export", url, "--to", "speculators", str(tmp_path / "e")]) == 0
    assert main(["diagnose", url]) == 0
    assert "all are what was committed" in capsys.readouterr().out


def test_tokens_are_read_without_the_states(
    bucket: Bucket, meddler: Meddler, wanted: ExtractionParameters
) -> None:
    run(wanted)
    store = Store(bucket.url)
    meddler.seen.clear()
    meddler.sizes_given.clear()
    for tokens, sample in zip(store.tokens(), SAMPLES, strict=True):
        assert tokens.input_ids.tolist() == sample.input_ids.tolist()
        assert tokens.loss_mask.tolist() == sample.loss_mask.tolist()
    assert len(meddler.seen) == len(SAMPLES)
    assert max(meddler.sizes_given) == 9 * max(s.num_tokens for s in SAMPLES)
