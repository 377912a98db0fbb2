"""A replica by itself, without Ray: blocks in, outcomes out; what goes wrong is returned."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.server import DROP, FakeServer, states_of
from make.rows import random_sample

from hslib.cluster.replica import Problem, Replica, ReplicaFacts, of_replica
from hslib.dataset import Sample
from hslib.errors import JobError, ServerError, StoreError
from hslib.parameters import ExtractionParameters
from hslib.store import JournalMark, Manifest, Store, StoreWriter, open_storage
from hslib.store.journal import journal_name

SAMPLES = [random_sample(i, 10 + i, seed=23) for i in range(12)]


@pytest.fixture
def fake(tmp_path: Path, model_of: Callable[[str], Path]) -> Iterator[FakeServer]:
    server = FakeServer(tmp_path / "dumps", model_of("llama"))
    yield server
    server.stop()


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
    from hslib.job.prepare import make_manifest
    from hslib.model import read_model
    from hslib.server.endpoints import open_endpoints

    survey: Any = type("Survey", (), {"digest": "0"})
    return make_manifest(wanted, open_endpoints(wanted), read_model(wanted.model_folder), survey)


@pytest.fixture
def replica(wanted: ExtractionParameters) -> Iterator[Replica]:
    found = Replica(3, wanted)
    assert isinstance(found.start(), ReplicaFacts)
    yield found
    found.close()
    found.end()


def test_a_block_comes_back_when_all_of_it_is_committed(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    mark = replica.begin(wanted, manifest)
    assert isinstance(mark, JournalMark)
    report = replica.extract(SAMPLES[:8])
    assert (report.ok, report.num_tokens) == (8, sum(s.num_tokens for s in SAMPLES[:8]))
    assert (report.failures, report.unfinished, report.problem) == ([], [], None)
    store = Store(wanted.store_path)
    assert sorted(
        entry.index for entry in open_storage(wanted.store_path).entries_since(mark)
    ) == list(range(8))
    assert report.size_bytes == sum(entry.size_bytes for entry in store.entries.values())
    for stored in store:
        assert stored.hidden_states.equal(states_of(stored.input_ids.numpy()))


def test_two_blocks_at_once_each_have_their_own_report(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    fake.misbehave = lambda rid, *_: 400 if rid.startswith("hs-1-") else None
    replica.begin(wanted, manifest)
    reports: dict[int, Any] = {}

    def ask(number: int, block: list[Sample]) -> None:
        reports[number] = replica.extract(block)

    threads = [threading.Thread(target=ask, args=(n, SAMPLES[6 * n : 6 * n + 6])) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (reports[0].ok, reports[1].ok) == (5, 6)
    assert [row.index for row in reports[0].failures] == [1]
    assert "answered 400" in reports[0].failures[0].reason


def test_a_mark_leaves_out_what_an_earlier_writer_wrote(
    wanted: ExtractionParameters, manifest: Manifest
) -> None:
    marks = []
    for sample in SAMPLES[:2]:
        replica = Replica(3, wanted)
        replica.start()
        marks.append(replica.begin(wanted, manifest))
        replica.extract([sample])
        replica.end()
    assert isinstance(marks[1], JournalMark)
    assert [entry.index for entry in open_storage(wanted.store_path).entries_since(marks[1])] == [1]
    assert list(Store(wanted.store_path).entries) == [0, 1]


def test_a_lock_that_is_about_to_be_free_is_waited_for(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    with StoreWriter(wanted.store_path, manifest):
        held = open_storage(wanted.store_path).lock(journal_name(0, 1, 3), "it")
    held.acquire()
    threading.Timer(1.0, held.release).start()
    started = time.monotonic()
    assert isinstance(replica.begin(wanted, manifest), JournalMark)
    assert time.monotonic() - started > 0.5


def test_a_store_of_another_kind_is_the_jobs_problem(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    with StoreWriter(wanted.store_path, manifest.model_copy(update={"boundaries": (1, 2, 5)})):
        pass
    answer = replica.begin(wanted, manifest)
    assert isinstance(answer, Problem)
    assert (answer.kind, "boundaries differ" in answer.text) == ("job", True)


def test_a_server_that_stays_away_is_the_replicas_problem(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    replica.begin(wanted, manifest)
    replica.extract(SAMPLES[:2])
    fake.misbehave = lambda *_: DROP  # connections that are kept open outlive the next line
    fake.stop()
    report = replica.extract(SAMPLES[2:6])
    assert (report.ok, report.unfinished) == (0, [2, 3, 4, 5])
    assert report.problem is not None
    assert report.problem.kind == "replica"
    later = replica.extract(SAMPLES[6:8])
    assert (later.unfinished, later.problem) == ([6, 7], report.problem)
    fake.start()  # for the fixture to stop


def test_a_stopped_replica_finishes_what_it_has_sent_and_returns_the_rest(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest, fake: FakeServer
) -> None:
    def stop_once(*_: Any) -> None:
        replica.stop()
        time.sleep(0.1)

    fake.misbehave = stop_once
    replica.begin(wanted, manifest)
    report = replica.extract(SAMPLES)
    assert 0 < report.ok < len(SAMPLES)
    assert report.problem is None
    done = set(Store(wanted.store_path).entries)
    assert set(report.unfinished) == {s.index for s in SAMPLES} - done
    assert len(done) == report.ok


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServerError("another model came back"), "replica"),
        (JobError("gone", down=True), "replica"),
        (JobError("20 samples in a row failed"), "job"),
        (StoreError("of another kind"), "job"),
        (OSError(28, "No space left on device"), "job"),
    ],
)
def test_whose_problem_an_error_is(error: Exception, kind: str) -> None:
    assert Problem.of(error).kind == kind


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


def test_nobody_takes_over_a_job_whose_driver_is_gone_while_its_replicas_still_write(
    replica: Replica, wanted: ExtractionParameters, manifest: Manifest
) -> None:
    replica.begin(wanted, manifest)
    with pytest.raises(JobError, match=r"journal-replica-00003\.jsonl of .* is in use"):
        StoreWriter(wanted.store_path, manifest)
    with StoreWriter(wanted.store_path, manifest, replica=1):
        pass  # the others of its job may come and go
    replica.end()
    StoreWriter(wanted.store_path, manifest).close()
