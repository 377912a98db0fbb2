"""A store in a bucket, on a real S3 server: what is told as stored is there, whatever happens."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.bucket import CREDENTIALS, Bucket, Fate, Meddler, wait_until
from make.dumps import EXPECTED, write_dump
from make.rows import random_sample
from store.test_store import manifest, store_samples

from hslib.__main__ import main
from hslib.dataset import Sample
from hslib.errors import JobError, ParameterError, StoreError
from hslib.parameters import ExtractionParameters, StoreParameters
from hslib.server.dumps import Dump, DumpDir
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import (
    Entry,
    Manifest,
    Store,
    StoreWriter,
    open_storage,
    probe_write,
    read_store_url,
)
from hslib.store.bucket import journal as objectjournal
from hslib.store.bucket import lock as objectlock
from hslib.store.bucket import objects

SAMPLES = [random_sample(i, 5 + i) for i in range(4)]


def store_in(bucket: Bucket, tmp_path: Path, samples: list[Sample]) -> list[torch.Tensor]:
    """Store samples in the bucket; returns their states. ``store_samples`` of a URL."""
    states = []
    with StoreWriter(bucket.url, manifest()) as writer:
        for sample in samples:
            states.append(write_dump(tmp_path / "dumps", "d", sample))
            put(writer, sample, DumpDir(tmp_path / "dumps").load("d"))
    return states


def put(writer: StoreWriter, sample: Sample, dump: Dump, expected: Expected = EXPECTED) -> Entry:
    return writer.put(sample, dump, validate(dump, sample, expected), 1, 0.01)


def one_dump(tmp_path: Path, sample: Sample) -> Dump:
    write_dump(tmp_path / "dumps", f"d{sample.index}", sample)
    return DumpDir(tmp_path / "dumps").load(f"d{sample.index}")


def fail(index: int) -> Entry:
    return Entry(index=index, id=f"row-{index}", status="failed", reason="made by the test")


# --- places -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("runs/demo/store", Path("runs/demo/store")),
        ("/data/a:b/c", Path("/data/a:b/c")),
        ("s3://my-bucket/a/b/", "s3://my-bucket/a/b"),
        ("s3://my-bucket", "s3://my-bucket"),
        (Path("s3://my-bucket/a"), "s3://my-bucket/a"),
    ],
)
def test_a_place_is_a_path_or_a_url_in_its_one_form(text: Any, place: Any) -> None:
    assert read_store_url(text) == place


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIASECRET:hush@my-bucket/a",
        "s3://hush@my-bucket/a",
        "s3://my-bucket/a?X-Amz-Signature=hush",
        "s3://my-bucket/a#hush",
        "s3://my-bucket/../hush",
        "s3://my-bucket//hush",
        "s3://my_bucket:9000/hush",
        "https://hush:hush@host/my-bucket",
        "gs://my-bucket/hush",
    ],
)
def test_a_url_with_anything_else_in_it_is_refused_and_not_repeated(url: str) -> None:
    for refused in (
        lambda: ExtractionParameters.from_values({"store_dir": url}),
        lambda: StoreParameters.from_values({"store_dir": url}),
        lambda: Store(url),
        lambda: StoreWriter(url, manifest()),
    ):
        with pytest.raises(ParameterError, match="AWS_ACCESS_KEY_ID") as caught:
            refused()
        assert "hush" not in f"{caught.value!r} {caught.value} {caught.value.fields}"


# --- what is written is what is read ------------------------------------------------------


def test_samples_come_back_bit_by_bit_under_names_of_their_own(
    bucket: Bucket, tmp_path: Path
) -> None:
    samples = [random_sample(i, n) for i, n in ((1003, 7), (2, 1), (40, 30))]
    states = store_in(bucket, tmp_path, samples)
    store = Store(bucket.url)
    assert [stored.index for stored in store] == [2, 40, 1003]
    for sample, state in zip(samples, states, strict=True):
        stored = store[sample.index]
        assert torch.equal(stored.hidden_states, state)
        assert torch.equal(stored.layer(3), state[:, 1])
        assert stored.input_ids.tolist() == sample.input_ids.tolist()
        assert stored.loss_mask.tolist() == sample.loss_mask.tolist()
    entry = store.entries[1003]
    assert entry.file == f"samples/00001/00001003-{entry.entry}.safetensors"
    assert sorted(bucket.samples()) == sorted(e.file for e in store.entries.values())
    assert [bucket.objects.head(e.file).etag for e in store.entries.values()] == [
        e.etag for e in store.entries.values()
    ]
    assert store.verify().clean
    assert store.verify(deep=True).clean
    assert not [name for name in bucket.names() if "lock" in name or "check" in name]


def test_worker_processes_read_it_too(bucket: Bucket, tmp_path: Path) -> None:
    """A forked process can't use its parent's connections."""
    from torch.utils.data import DataLoader

    from hslib.export.torch_dataset import StoreDataset, collate_packed

    states = store_in(bucket, tmp_path, SAMPLES)
    dataset = StoreDataset(bucket.url)
    assert torch.equal(dataset[0].final, states[0][:, -1])
    loader = DataLoader(dataset, num_workers=2, collate_fn=collate_packed)
    assert all(
        torch.equal(batch.final[0], state[:, -1])
        for batch, state in zip(loader, states, strict=True)
    )


def test_a_copy_of_the_bucket_in_a_directory_is_a_store_and_so_is_the_way_back(
    bucket: Bucket, tmp_path: Path
) -> None:
    states = store_in(bucket, tmp_path, SAMPLES)
    for name in bucket.names():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(bucket.objects.get(name))
    assert Store(tmp_path / "copy").verify(deep=True).clean
    store_samples(tmp_path / "local", SAMPLES)
    store = Store(bucket.upload(tmp_path / "local"))
    assert store.verify().clean
    assert store.verify(deep=True).clean
    assert torch.equal(store[2].hidden_states, states[2])


WIDE = Expected((1, 3, 5), hidden_size=2048)


def wide_dump(tmp_path: Path) -> tuple[Sample, Dump, torch.Tensor]:
    """12.5 MB of states."""
    sample = random_sample(0, 760)
    states = write_dump(tmp_path / "dumps", "w", sample, WIDE)
    return sample, DumpDir(tmp_path / "dumps").load("w"), states


def test_a_large_sample_is_uploaded_in_parts(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    sample, dump, states = wide_dump(tmp_path)
    with StoreWriter(bucket.url, manifest(hidden_size=2048)) as writer:
        put(writer, sample, dump, WIDE)
    store = Store(bucket.url)
    assert store.entries[0].etag.endswith("-3"), "an ETag of three parts"
    assert torch.equal(store[0].hidden_states, states)
    assert store.verify(deep=True).clean


def test_blocks_hold_every_byte_once() -> None:
    parts = [b"header", memoryview(bytes(range(250))), b"", b"tail"]
    for size in (1, 7, 100, 260, 1000):
        found = list(objects.blocks(parts, size))
        assert b"".join(found) == b"".join(parts)
        assert {len(block) for block in found[:-1]} <= {size}


# --- somebody else writes there -----------------------------------------------------------


def test_an_object_that_somebody_overwrote_is_noticed_without_reading_the_others(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    store_in(bucket, tmp_path, SAMPLES)
    files = [entry.file for entry in Store(bucket.url).entries.values()]
    other = bytearray(bucket.objects.get(files[1]))
    other[-3] ^= 1
    bucket.objects.put(files[1], bytes(other))  # the same size
    bucket.objects.put(files[2], b"something else")
    bucket.objects.delete(files[3])
    store = Store(bucket.url)
    meddler.seen.clear()
    report = store.verify()
    assert {f.index: f.check for f in report.faults} == {1: "checksum", 2: "size", 3: "exists"}
    assert "somebody wrote another object there" in report.faults[0].detail
    for method in ("HEAD", "GET"):
        asked = {path for how, path, _ in meddler.seen if how == method and ".safetensors" in path}
        assert len(asked) == 1, "of the others a listing tells; only the suspicious one is read"
    with pytest.raises(StoreError, match="sample 2 is not sound"):
        store[2]
    with pytest.raises(StoreError, match="sample 1 is not sound: checksum"):
        store.checked(1)
    assert store.repair(report) == [1, 2, 3]
    assert list(Store(bucket.url).entries) == [0]
    assert len(bucket.names("quarantine/")) == 2
    store_in(bucket, tmp_path, SAMPLES[1:])
    assert list(Store(bucket.url).entries) == [0, 1, 2, 3]
    assert Store(bucket.url).verify(deep=True).clean


def test_the_same_bytes_written_anew_are_no_fault(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that was copied has other ETags."""
    sample, dump, _ = wide_dump(tmp_path)
    with StoreWriter(bucket.url, manifest(hidden_size=2048)) as writer:
        entry = put(writer, sample, dump, WIDE)
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    assert bucket.objects.put_parts(entry.file, [bucket.objects.get(entry.file)]) != entry.etag
    assert Store(bucket.url).verify().clean


# --- uploads that fail --------------------------------------------------------------------


def test_an_upload_that_is_cut_off_is_tried_again(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    cut: list[str] = []

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "PUT" and "samples/" in path and not cut:
            cut.append(path)
            return "cut"
        return "pass"

    meddler.judge = judge
    store_in(bucket, tmp_path, SAMPLES[:2])
    assert cut
    assert Store(bucket.url).verify(deep=True).clean
    assert len(Store(bucket.url)) == 2


def test_an_upload_that_stays_cut_off_is_an_error_and_nothing_is_marked_done(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    meddler.judge = lambda method, path, _body: (
        "cut" if method == "PUT" and "samples/00000/00000001" in path else "pass"
    )
    with pytest.raises(StoreError, match="Run again to resume") as caught:
        store_in(bucket, tmp_path, SAMPLES)
    assert caught.value.fields["bucket"] == bucket.name
    assert "samples/00000/00000001" in caught.value.fields["key"]
    assert list(Store(bucket.url).entries) == [0]
    assert Store(bucket.url).verify(deep=True).clean
    meddler.judge = lambda *_: "pass"
    store_in(bucket, tmp_path, SAMPLES[1:])
    assert list(Store(bucket.url).entries) == [0, 1, 2, 3]


def test_an_upload_in_parts_that_fails_leaves_nothing_behind(
    bucket: Bucket, meddler: Meddler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    meddler.judge = lambda _method, path, _body: (
        (403, "AccessDenied") if "partNumber=2" in path else "pass"
    )
    sample, dump, _ = wide_dump(tmp_path)
    with (
        StoreWriter(bucket.url, manifest(hidden_size=2048)) as writer,
        pytest.raises(StoreError, match="s3:GetObject"),
    ):
        put(writer, sample, dump, WIDE)
    assert [name.partition("?")[0] for name, _ in meddler.puts("partNumber=1")]
    assert bucket.unfinished_uploads() == 0
    assert bucket.samples() == []
    assert len(Store(bucket.url)) == 0


def test_a_sample_takes_two_requests_and_its_line_names_the_objects_etag(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    dumps = [one_dump(tmp_path, sample) for sample in SAMPLES]
    with StoreWriter(bucket.url, manifest()) as writer:
        for sample, dump in zip(SAMPLES, dumps, strict=True):
            meddler.seen.clear()
            entry = put(writer, sample, dump)
            kinds = [(method, "/samples/" in path) for method, path, _ in meddler.seen]
            assert kinds == [("PUT", True), ("PUT", False)], "the sample, then the journal"
            assert entry.etag == bucket.objects.head(entry.file).etag


def test_an_object_that_somebody_wrote_over_is_found_without_reading_the_others(
    bucket: Bucket, tmp_path: Path
) -> None:
    store_in(bucket, tmp_path, SAMPLES)
    name = bucket.samples()[0]
    content = bucket.objects.get(name)
    bucket.objects.put(name, content[:-1] + bytes([content[-1] ^ 1]))
    (fault,) = Store(bucket.url).verify(deep=False).faults
    assert fault.index == 0 and "somebody wrote another object there" in fault.detail


def test_an_upload_that_is_answered_without_an_etag_is_asked_for(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    meddler.silent_on = ("etag",)
    store_in(bucket, tmp_path, SAMPLES)
    asked = [path for method, path, _ in meddler.seen if method == "HEAD" and "/samples/" in path]
    assert len(asked) == len(SAMPLES)
    store = Store(bucket.url)
    assert store.verify(deep=True).clean
    assert [entry.etag for entry in store.entries.values()] == [
        bucket.objects.head(entry.file).etag for entry in store.entries.values()
    ]


def test_a_store_that_holds_something_else_than_was_sent_gets_no_journal_line(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    """Somebody wrote over the object between the upload and the question what is there."""
    meddler.silent_on = ("etag",)

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "HEAD" and "samples/" in path:
            bucket.objects.put(path.split("/states/kimi/")[1], b"mine now")
        return "pass"

    meddler.judge = judge
    with pytest.raises(StoreError, match="holds something else than was sent"):
        store_in(bucket, tmp_path, SAMPLES[:1])
    assert len(Store(bucket.url)) == 0


def test_a_crash_between_the_sample_and_its_line_leaves_a_file_that_does_not_count(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CrashError(BaseException):
        pass

    def crash(*_args: Any) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(objectjournal.ObjectJournal, "_commit", crash)
        with pytest.raises(CrashError):
            store_in(bucket, tmp_path, SAMPLES[:1])
    assert len(bucket.samples()) == 1
    assert len(Store(bucket.url)) == 0
    store_in(bucket, tmp_path, SAMPLES[:1])
    assert len(bucket.samples()) == 2, "the first one's name is not used again"
    assert Store(bucket.url).verify(deep=True).clean


# --- refusals, with what to do ------------------------------------------------------------


def test_missing_credentials_name_the_variables(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    for use in (
        lambda: probe_write(bucket.url),
        lambda: Store(bucket.url),
        lambda: StoreWriter(bucket.url, manifest()),
    ):
        with pytest.raises(StoreError, match="AWS_SECRET_ACCESS_KEY") as caught:
            use()
        assert caught.value.fields["code"] == "NoCredentials"


def test_a_missing_bucket_is_told_from_a_missing_store(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    for use in (
        lambda: probe_write("s3://no-such-bucket/x"),
        lambda: Store("s3://no-such-bucket/x"),
        lambda: StoreWriter("s3://no-such-bucket/x", manifest()),
    ):
        with pytest.raises(StoreError, match="create the bucket") as caught:
            use()
        assert caught.value.fields["code"] == "NoSuchBucket"
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        Store(bucket.url)
    assert main(["verify", "s3://no-such-bucket/x"]) == 1
    assert "create the bucket" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fate", "advice"),
    [
        ((403, "AccessDenied"), "s3:ListBucket"),
        ((403, "InvalidAccessKeyId"), "AWS_PROFILE"),
        ((403, "ExpiredToken"), "valid now"),
        ((301, "PermanentRedirect"), "AWS_DEFAULT_REGION"),
        ((503, "SlowDown"), "resume"),
        ((501, "NotImplemented"), "use another"),
    ],
)
def test_what_the_object_store_refuses_is_told_with_the_cure(
    bucket: Bucket, meddler: Meddler, fate: Fate, advice: str
) -> None:
    meddler.judge = lambda method, *_: fate if method == "PUT" else "pass"
    with pytest.raises(StoreError, match=advice) as caught:
        probe_write(bucket.url)
    assert caught.value.fields["bucket"] == bucket.name
    assert caught.value.fields["code"] == fate[1]


def test_an_object_store_that_is_not_there_is_an_error(bucket: Bucket, meddler: Meddler) -> None:
    meddler.stop()
    for url in (meddler.url, meddler.url.replace("http://", "http://user:hush@")):
        bucket.through(url)
        with pytest.raises(StoreError, match="AWS_ENDPOINT_URL") as caught:
            probe_write(bucket.url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_an_object_store_that_ignores_conditions_is_refused(
    bucket: Bucket, meddler: Meddler, header: str
) -> None:
    meddler.without = (header,)
    with pytest.raises(StoreError, match="knows no conditional writes"):
        probe_write(bucket.url)
    assert bucket.names() == []


def test_the_preflight_leaves_nothing_behind(bucket: Bucket) -> None:
    probe_write(bucket.url)
    assert bucket.names() == []


def test_an_object_store_bounds_nothing(bucket: Bucket) -> None:
    assert open_storage(bucket.url).free_bytes() is None


# --- the journal --------------------------------------------------------------------------


def test_a_journal_goes_on_in_segments_and_concurrent_lines_are_all_there(
    bucket: Bucket, meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectjournal, "SEGMENT_BYTES", 2000)
    with StoreWriter(bucket.url, manifest()) as writer, ThreadPoolExecutor(8) as pool:
        list(pool.map(writer.record, map(fail, range(80))))
    segments = bucket.names("journal")
    assert len(segments) > 5
    assert all(re.fullmatch(r"journal-[0-9a-f]{12}-\d{6}\.jsonl", name) for name in segments)
    lines = [line for name in segments for line in bucket.objects.get(name).splitlines()]
    assert len(lines) == len(set(lines)) == 80
    assert list(Store(bucket.url).journal_state.failed) == list(range(80))
    assert len(meddler.puts("/journal")) < 60, "writers that wait share a commit"
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(fail(80))
    assert len(Store(bucket.url).journal_state.failed) == 81
    assert set(segments) < set(bucket.names("journal")), "another writer has its own"


def test_a_request_that_arrives_late_takes_nothing_back(bucket: Bucket, meddler: Meddler) -> None:
    late: list[Callable[[], int]] = []

    def judge(method: str, path: str, body: bytes) -> Fate:
        if method == "PUT" and "/journal" in path and b'"index":1,' in body and not late:
            late.append(meddler.last_again)
            return "cut"
        return "pass"

    meddler.judge = judge
    with StoreWriter(bucket.url, manifest()) as writer:
        for index in range(4):
            writer.record(fail(index))
    assert late[0]() == 412
    assert list(Store(bucket.url).journal_state.failed) == [0, 1, 2, 3]


def test_a_commit_whose_confirmation_was_lost_is_a_commit(bucket: Bucket, meddler: Meddler) -> None:
    muted: list[str] = []

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "PUT" and "/journal" in path and not muted:
            muted.append(path)
            return "mute"
        return "pass"

    meddler.judge = judge
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(fail(0))
        writer.record(fail(1))
    assert muted
    assert list(Store(bucket.url).journal_state.failed) == [0, 1]


def test_a_commit_that_meets_another_request_is_sent_again(
    bucket: Bucket, meddler: Meddler
) -> None:
    refused: list[str] = []

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "PUT" and "/journal" in path and len(refused) < 2:
            refused.append(path)
            return (409, "ConditionalRequestConflict")
        return "pass"

    meddler.judge = judge
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(fail(0))
    assert len(refused) == 2
    assert list(Store(bucket.url).journal_state.failed) == [0]


def test_a_journal_that_somebody_else_writes_to_is_an_error(bucket: Bucket) -> None:
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(fail(0))
        bucket.objects.put(bucket.names("journal")[0], b"")
        with pytest.raises(StoreError, match="somebody else writes"):
            writer.record(fail(1))
        with pytest.raises(StoreError, match="the journal is closed"):
            writer.record(fail(2))


def test_a_journal_that_was_refused_acknowledges_nothing_more(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    dumps = [one_dump(tmp_path, sample) for sample in SAMPLES]
    with StoreWriter(bucket.url, manifest()) as writer:
        put(writer, SAMPLES[0], dumps[0])
        meddler.judge = lambda method, path, _body: (
            (403, "AccessDenied") if method == "PUT" and "/journal" in path else "pass"
        )
        with pytest.raises(StoreError, match="AccessDenied"):
            put(writer, SAMPLES[1], dumps[1])
        meddler.judge = lambda *_: "pass"
        with pytest.raises(StoreError, match="the journal is closed"):
            put(writer, SAMPLES[2], dumps[2])
    assert list(Store(bucket.url).entries) == [0]


# --- two jobs -----------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectlock, "RENEW_S", 0.1)
    monkeypatch.setattr(objectlock, "STALE_S", 3.0)
    monkeypatch.setattr(objectlock, "_LOOK_EVERY_S", 0.2)


@pytest.mark.usefixtures("hasty")
def test_a_second_writer_is_refused_with_the_owner_and_may_go_on_afterwards(
    bucket: Bucket,
) -> None:
    with (
        StoreWriter(bucket.url, manifest()),
        pytest.raises(JobError, match="in use by another job") as caught,
    ):
        StoreWriter(bucket.url, manifest())
    assert '"pid"' in caught.value.fields["owner"]
    StoreWriter(bucket.url, manifest()).close()


@pytest.mark.usefixtures("hasty")
def test_writers_that_split_the_rows_differently_are_refused(bucket: Bucket) -> None:
    with (
        StoreWriter(bucket.url, manifest(), 0, 2),
        StoreWriter(bucket.url, manifest(), 1, 2),
        pytest.raises(JobError, match="num_shards"),
    ):
        StoreWriter(bucket.url, manifest(), 2, 3)
    StoreWriter(bucket.url, manifest(), 2, 3).close()


@pytest.mark.usefixtures("hasty")
def test_a_lock_that_a_dead_job_left_is_taken_over_when_it_is_stale(bucket: Bucket) -> None:
    bucket.objects.put(".journal.jsonl.lock", b'{"pid": 1, "host": "gone", "token": "x"}')
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(fail(0))
    assert ".journal.jsonl.lock" not in bucket.names()


@pytest.mark.usefixtures("hasty")
def test_of_two_jobs_that_find_a_stale_lock_one_takes_it(bucket: Bucket) -> None:
    bucket.objects.put(".journal.jsonl.lock", b"{}")
    taken, refused = [], []

    def open_writer() -> None:
        try:
            taken.append(StoreWriter(bucket.url, manifest()))
        except JobError as error:
            refused.append(error)

    threads = [threading.Thread(target=open_writer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 2)
    taken[0].close()


@pytest.mark.usefixtures("hasty")
def test_a_writer_that_lost_its_lock_commits_nothing_more(bucket: Bucket, tmp_path: Path) -> None:
    dumps = [one_dump(tmp_path, sample) for sample in SAMPLES]
    other = b'{"pid": 1, "host": "elsewhere", "token": "x"}'
    with StoreWriter(bucket.url, manifest()) as writer:
        put(writer, SAMPLES[0], dumps[0])
        bucket.objects.put(".journal.jsonl.lock", other)
        wait_until("the loss is noticed", lambda: writer._lock._is_lost)
        with pytest.raises(JobError, match="no longer this job's") as caught:
            put(writer, SAMPLES[1], dumps[1])
        assert "elsewhere" in caught.value.fields["owner"]
    assert list(Store(bucket.url).entries) == [0]
    assert bucket.objects.get(".journal.jsonl.lock") == other, "it is not ours to delete"


@pytest.mark.usefixtures("hasty")
def test_a_lock_that_cannot_be_renewed_ends(bucket: Bucket, meddler: Meddler) -> None:
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(fail(0))
        meddler.judge = lambda method, path, _body: (
            (503, "SlowDown") if method == "PUT" and "lock" in path else "pass"
        )
        writer._lock._renewed_at -= objectlock.STALE_S
        with pytest.raises(JobError, match="could not be renewed for 3 s"):
            writer.record(fail(1))
    assert list(Store(bucket.url).journal_state.failed) == [0]


def test_manifests_are_compared_as_in_a_directory(bucket: Bucket) -> None:
    StoreWriter(bucket.url, manifest()).close()
    with pytest.raises(StoreError, match="boundaries differ"):
        StoreWriter(bucket.url, manifest(boundaries=(2, 3, 5)))
    assert [name for name in bucket.names() if "lock" in name] == []
    assert isinstance(Store(bucket.url).manifest, Manifest)
