"""A replica by itself, without Ray: a shard in, its report out."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.server import DROP, FakeServer, states_of
from make.rows import random_sample

from hslib.cluster.messages import of_replica
from hslib.cluster.replica import Replica
from hslib.cluster.shard_run import _is_the_replicas
from hslib.cluster.shards import Shard
from hslib.errors import JobError, RequestError, ServerError, StoreError
from hslib.job.prepare import make_manifest
from hslib.model import read_model
from hslib.parameters import ExtractionParameters
from hslib.server.endpoints import open_endpoints
from hslib.store import Manifest, Store, StoreWriter, open_storage
from hslib.store.entry import journal_name

SAMPLES = tuple(random_sample(i, 10 + i, seed=23) for i in range(12))


def shard(start: int, end: int, number: int = 0) -> Shard:
    return Shard("1f03a9", number, SAMPLES[start:end])


@pytest.fixture
def wanted(fake: FakeServer, tmp_path: Path) -> ExtractionParameters:
    return ExtractionParameters(
        run_dir=str(tmp_path / "run"),
        model_path=str(fake.model),
        layers="1,3,5",
        server_url=fake.url,
        dump_dir=str(fake.dumps),
        dump_timeout_s=5.0,
        server_wait_s=0.3,
        concurrency=2,
        samples_per_request=2,
    )


@pytest.fixture
def manifest(wanted: ExtractionParameters) -> Manifest:
    survey: Any = type("Survey", (), {"digest": "0"})
    return make_manifest(wanted, open_endpoints(wanted), read_model(wanted.model_folder), survey)


@pytest.fixture
def replica(wanted: ExtractionParameters) -> Iterator[Replica]:
    found = Replica(3, wanted)
    assert found.start().longest_row == 1000
    yield found
    found.close()


def test_a_shard_comes_back_when_all_of_it_is_committed(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    report = replica.extract(wanted, manifest, shard(0, 8))
    assert (report.ok, report.num_tokens) == (8, sum(s.num_tokens for s in SAMPLES[:8]))
    assert report.failures == []
    store = Store(wanted.store_path)
    journal = "journal-part-1f03a9-00000.jsonl"
    assert sorted(e.index for e in open_storage(wanted.store_path).entries(journal)) == list(
        range(8)
    )
    assert report.size_bytes == sum(entry.size_bytes for entry in store.entries.values())
    for stored in store:
        assert stored.hidden_states.equal(states_of(stored.input_ids.numpy()))
    told = replica.told("1f03a9-00000")
    assert told is not None
    assert told.ok == 8
    assert replica.told("another") is None


def test_a_second_try_at_a_shard_does_only_what_is_left_and_counts_all(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    first = replica.extract(wanted, manifest, shard(0, 5))
    fake.requests.clear()
    again = replica.extract(wanted, manifest, shard(0, 8))
    assert (first.ok, again.ok) == (5, 8)
    assert again.num_tokens == sum(s.num_tokens for s in SAMPLES[:8])
    assert {int(rid.split("-")[1]) for rid in fake.requests} == {5, 6, 7}
    assert len(Store(wanted.store_path)) == 8


def test_a_row_that_fails_stands_in_the_report(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    fake.misbehave = lambda rid, *_: 400 if rid.startswith("hs-1-") else None
    report = replica.extract(wanted, manifest, shard(0, 6))
    assert report.ok == 5
    assert [row.index for row in report.failures] == [1]
    assert "answered 400" in report.failures[0].reason


def test_a_lock_that_is_about_to_be_free_is_waited_for(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    with StoreWriter(wanted.store_path, manifest):
        held = open_storage(wanted.store_path).lock(journal_name(0, 1, "1f03a9-00000"), "it")
    held.acquire()
    threading.Timer(1.0, held.release).start()
    started = time.monotonic()
    assert replica.extract(wanted, manifest, shard(0, 2)).ok == 2
    assert time.monotonic() - started > 0.5


def test_a_store_of_another_kind_is_refused(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    with StoreWriter(wanted.store_path, manifest.model_copy(update={"boundaries": (1, 2, 5)})):
        pass
    with pytest.raises(StoreError, match="boundaries differ"):
        replica.extract(wanted, manifest, shard(0, 2))


def test_a_server_that_stays_away_ends_the_shard_and_what_is_stored_stays(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    replica.extract(wanted, manifest, shard(0, 2))
    fake.misbehave = lambda *_: DROP  # connections that are kept open outlive the next line
    fake.stop()
    with pytest.raises(JobError, match="did not come back") as caught:
        replica.extract(wanted, manifest, shard(0, 6))
    assert caught.value.fields["down"]
    assert len(Store(wanted.store_path)) == 2
    fake.start()  # for the fixture to stop


def test_a_stopped_replica_finishes_what_it_has_sent_and_begins_no_shard_of_that_run(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    def stop_once(*_: Any) -> None:
        replica.stop("1f03a9")
        time.sleep(0.1)

    fake.misbehave = stop_once
    report = replica.extract(wanted, manifest, shard(0, 12))
    assert 0 < report.ok < len(SAMPLES)
    assert len(Store(wanted.store_path)) == report.ok
    fake.misbehave = lambda *_: None
    assert replica.extract(wanted, manifest, shard(0, 12, number=1)).ok == 0
    later = Shard("another", 0, SAMPLES[:4])
    assert replica.extract(wanted, manifest, later).ok == 4


@pytest.mark.parametrize(
    ("error", "is_the_replicas"),
    [
        (ServerError("another model came back"), True),
        (JobError("gone", down=True), True),
        (JobError("in use by another job", owner="pid 7"), True),
        (JobError("20 samples in a row failed"), False),
        (StoreError("of another kind"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_whether_another_replica_may_do_better(error: Exception, is_the_replicas: bool) -> None:
    assert _is_the_replicas(error) == is_the_replicas


def test_an_error_keeps_its_fields_from_process_to_process() -> None:
    import pickle

    error = RequestError("no answer", fix="wait", down=True, index=7)
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is RequestError
    assert (str(found), found.fix, found.fields) == (str(error), "wait", {"down": True, "index": 7})


def test_each_replica_has_a_run_and_a_dump_directory_of_its_own(tmp_path: Path) -> None:
    job = ExtractionParameters(
        run_dir=str(tmp_path), dump_dir="/dev/shm/x", ray_address="local", num_replicas=2
    )
    one, two = of_replica(job, 0), of_replica(job, 1)
    assert one.store_path == two.store_path == job.store_path
    assert one.run_path != two.run_path
    assert one.dump_paths == [Path("/dev/shm/x/replica-00000")]
    default = job.model_copy(update={"dump_dir": ""})
    assert of_replica(default, 0).dump_paths != of_replica(default, 1).dump_paths


def test_no_job_begins_while_a_task_of_one_that_is_gone_still_writes(
    wanted: ExtractionParameters, manifest: Manifest
) -> None:
    with StoreWriter(wanted.store_path, manifest, part="1f03a9-00003"):
        with pytest.raises(JobError, match=r"journal-part-1f03a9-00003\.jsonl of .* is in use"):
            StoreWriter(wanted.store_path, manifest)
        with StoreWriter(wanted.store_path, manifest, part="1f03a9-00001"):
            pass  # the others of its job may come and go
    StoreWriter(wanted.store_path, manifest).close()
