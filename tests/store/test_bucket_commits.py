"""Journal and lock in a bucket: no line is lost or doubled, and no second job writes."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes.bucket import Bucket, Fate, Meddler
from make.rows import random_sample
from make.stores import failure, manifest, one_dump, put
from make.waits import wait_until

from hslib.errors import JobError, StoreError
from hslib.store import Store, StoreWriter
from hslib.store.bucket import lock as objectlock
from hslib.store.bucket import storage as objectjournal

pytestmark = pytest.mark.slow  # many requests each; the contract's are in the quick part

SAMPLES = [random_sample(i, 5 + i) for i in range(4)]


# --- the journal --------------------------------------------------------------------------


def test_a_journal_goes_on_in_segments_and_concurrent_lines_are_all_there(
    bucket: Bucket, meddler: Meddler, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(objectjournal, "SEGMENT_BYTES", 2000)
    with StoreWriter(bucket.url, manifest()) as writer, ThreadPoolExecutor(8) as pool:
        list(pool.map(writer.record, map(failure, range(80))))
    segments = bucket.names("journal")
    assert len(segments) > 5
    assert all(re.fullmatch(r"journal-[0-9a-f]{12}-\d{6}\.jsonl", name) for name in segments)
    lines = [line for name in segments for line in bucket.objects.get(name).splitlines()]
    assert len(lines) == len(set(lines)) == 80
    assert list(Store(bucket.url).journal_state.failed) == list(range(80))
    assert len(meddler.puts("/journal")) < 60, "writers that wait share a commit"
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(failure(80))
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
            writer.record(failure(index))
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
        writer.record(failure(0))
        writer.record(failure(1))
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
        writer.record(failure(0))
    assert len(refused) == 2
    assert list(Store(bucket.url).journal_state.failed) == [0]


def test_a_journal_that_somebody_else_writes_to_is_an_error(bucket: Bucket) -> None:
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(failure(0))
        bucket.objects.put(bucket.names("journal")[0], b"")
        with pytest.raises(StoreError, match="somebody else writes"):
            writer.record(failure(1))
        with pytest.raises(StoreError, match="the journal is closed"):
            writer.record(failure(2))


def test_a_journal_that_was_refused_acknowledges_nothing_more(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    dumps = [one_dump(tmp_path / "dumps", sample) for sample in SAMPLES]
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


# --- the lock -----------------------------------------------------------------------------


@pytest.fixture
def soon_stale(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """A lock that is not renewed is stale after seconds: only where nothing else depends on it."""
    monkeypatch.setattr(objectlock, "STALE_S", 5.0)


@pytest.mark.usefixtures("soon_stale")
def test_a_lock_that_a_dead_job_left_is_taken_over_when_it_is_stale(bucket: Bucket) -> None:
    bucket.objects.put(".journal.jsonl.lock", b'{"pid": 1, "host": "gone", "token": "x"}')
    with StoreWriter(bucket.url, manifest()) as writer:
        writer.record(failure(0))
    assert ".journal.jsonl.lock" not in bucket.names()


@pytest.mark.usefixtures("soon_stale")
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
    dumps = [one_dump(tmp_path / "dumps", sample) for sample in SAMPLES]
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
        writer.record(failure(0))
        meddler.judge = lambda method, path, _body: (
            (503, "SlowDown") if method == "PUT" and "lock" in path else "pass"
        )
        writer._lock._renewed_at -= objectlock.STALE_S
        with pytest.raises(JobError, match="could not be renewed for 60 s"):
            writer.record(failure(1))
    assert list(Store(bucket.url).journal_state.failed) == [0]
