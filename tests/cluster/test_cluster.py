"""A job on Ray: real actors, extractor, store and journals; the servers in them are hand-made."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import tenacity
from fakes.bucket import Bucket
from fakes.replica import ok_lines, opened, run, when_stored
from fakes.server import states_of
from make.rows import random_sample, write_rows
from make.waits import wait_until

from hslib import extract
from hslib.cluster import connection, opening
from hslib.cluster.connection import demand, room
from hslib.dataset import Sample
from hslib.errors import DatasetError, JobError, ParameterError, ServerError
from hslib.job import progress, watch
from hslib.job.prepare import Job
from hslib.job.progress import read_progress
from hslib.parameters import ExtractionParameters
from hslib.store import Store, open_storage

SAMPLES = [random_sample(i, 10 + i % 40, seed=19) for i in range(120)]


@tenacity.retry(stop=tenacity.stop_after_attempt(3), reraise=True)
def _start_ray() -> None:
    """Ray's own processes may be late on a busy machine."""
    ray.shutdown()
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), before])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    _start_ray()
    yield
    ray.shutdown()
    os.environ["PYTHONPATH"] = before


@pytest.fixture
def parameters(
    tmp_path: Path, model_of: Callable[[str], Path]
) -> Callable[..., ExtractionParameters]:
    def make(*habits: str, **values: Any) -> ExtractionParameters:
        defaults = {
            "run_dir": str(tmp_path / "run"),
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", SAMPLES)),
            "model_path": str(model_of("llama")),
            "layers": "1,3,5",
            "ray_address": "local",
            "num_replicas": 2,
            "concurrency": 2,
            "samples_per_request": 2,
            "tokens_per_request": 100,
            "dump_timeout_s": 5.0,
            "server_wait_s": 5.0,
            "extra_args": list(habits),
        }
        return ExtractionParameters.from_values({**defaults, **values})

    return make


def assert_all_once(store_path: Path, but: tuple[int, ...] = ()) -> None:
    store = Store(store_path)
    assert list(store.entries) == [s.index for s in SAMPLES if s.index not in but]
    assert set(ok_lines(store_path).values()) == {1}
    assert store.verify(deep=True).clean
    for stored in store:
        assert stored.hidden_states.equal(states_of(stored.input_ids.numpy()))
    # what an actor that was killed was writing goes when its journal is opened next
    assert all(".part-" in path.name for path in store_path.rglob("*.tmp"))


def assert_nobody_writes(parameters: ExtractionParameters) -> None:
    storage = open_storage(parameters.store_path)
    for name in storage.locked():
        lock = storage.lock(name, name)
        lock.acquire()
        lock.release()


def test_both_replicas_do_a_share_and_every_row_is_stored_once(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.5)
    wanted = parameters("slow")
    assert run(wanted).is_whole
    assert_all_once(wanted.store_path)
    state = read_progress(wanted.run_path)
    assert state is not None
    assert (state.ok, state.num_tokens) == (len(SAMPLES), sum(s.num_tokens for s in SAMPLES))
    assert sum(replica.ok for replica in state.replicas) == len(SAMPLES)
    assert min(replica.ok for replica in state.replicas) > len(SAMPLES) // 4
    assert [replica.state for replica in state.replicas] == ["done", "done"]
    log = (wanted.run_path / "extraction.log").read_text()
    assert "2 of 2 replicas at work" in log
    told = dict(watch.facts(state, time.time()))
    assert "samples/s" in told["replica 0"] and "extracted" in told["replica 1"]
    again = run(wanted)
    assert (again.totals.ok, again.totals.already_done) == (0, len(SAMPLES))


def test_a_killed_actor_loses_and_repeats_nothing(parameters: Any) -> None:
    wanted = parameters("slow")
    with opened(wanted) as servers:
        job = extract.prepare(wanted, servers)
        victim = servers.ready[0].pid
        when_stored(wanted, 20, lambda: os.kill(victim, signal.SIGKILL))
        assert extract.run(job, servers).is_whole
        assert servers.ready[0].pid != victim or len(servers.ready) == 1
    assert_all_once(wanted.store_path)
    state = read_progress(wanted.run_path)
    assert state is not None
    assert (state.ok, sum(r.ok for r in state.replicas)) == (len(SAMPLES), len(SAMPLES))
    assert "replica 0 is lost" in (wanted.run_path / "extraction.log").read_text()


@pytest.mark.slow
def test_a_server_that_goes_away_is_replaced_with_its_replica(parameters: Any) -> None:
    wanted = parameters("slow", "drops-at-60", server_wait_s=0.5)
    assert run(wanted).is_whole
    assert_all_once(wanted.store_path)


@pytest.mark.slow
def test_rows_that_replicas_die_with_end_the_job_named_when_the_others_are_stored(
    parameters: Any,
) -> None:
    """The whole process dies, as when its host has no memory left; its server is another matter."""
    wanted = parameters("dies-at-5")
    with pytest.raises(JobError, match=r"lost 3 times while they had .* rows from 0 to"):
        run(wanted)
    store = Store(wanted.store_path)
    missing = {s.index for s in SAMPLES} - set(store.entries)
    assert 5 in missing
    assert missing <= set(range(40)), "a shard's, not others'"
    assert set(ok_lines(wanted.store_path).values()) == {1}
    wanted.extra_args.clear()
    assert run(wanted).is_whole
    assert_all_once(wanted.store_path)


@pytest.mark.slow
def test_what_no_replica_can_help_stops_the_job_and_it_goes_on_later(
    parameters: Any,
) -> None:
    wanted = parameters("slow")
    blocker = wanted.store_path / "samples"
    wanted.store_path.mkdir(parents=True)
    blocker.write_text("in the way")  # no sample can be written
    with pytest.raises(JobError, match="stopped the job"):
        run(wanted)
    state = read_progress(wanted.run_path)
    assert state is not None and state.state == "failed"
    blocker.unlink()
    assert run(wanted).is_whole
    assert_all_once(wanted.store_path)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_finishes_what_is_in_flight_and_the_rest_comes_later(parameters: Any) -> None:
    wanted = parameters("slow", concurrency=1)
    with opened(wanted) as servers:
        job = extract.prepare(wanted, servers)
        when_stored(wanted, 10, lambda: os.kill(os.getpid(), signal.SIGINT))
        result = extract.run(job, servers)
        assert result.interrupted
        stored = len(ok_lines(wanted.store_path))
        assert 10 <= stored < len(SAMPLES)
        assert result.totals.ok == stored
        assert result.totals.unfinished == len(SAMPLES) - stored
        # the same replicas take up the rest
        assert extract.run(extract.prepare(wanted, servers), servers).is_whole
    assert_all_once(wanted.store_path)


INTO_A_BUCKET = """
import os, signal, sys, threading, time
from fakes.replica import opened
from hslib import extract
from hslib.parameters import ExtractionParameters
from hslib.store import open_storage
wanted = ExtractionParameters.model_validate_json(sys.argv[1])
with opened(wanted) as servers:
    job = extract.prepare(wanted, servers)
    victim = servers.ready[0].pid
    def kill():
        while sum(entry.status == "ok" for entry in open_storage(wanted.store_path).entries()) < 20:
            time.sleep(0.1)
        os.kill(victim, signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
    assert extract.run(job, servers).is_whole
"""


@pytest.mark.slow
def test_replicas_write_to_a_bucket_and_one_that_is_killed_loses_and_repeats_nothing(
    parameters: Any, bucket: Bucket
) -> None:
    wanted = parameters("slow", "impatient", store_dir=bucket.url)
    subprocess.run([sys.executable, "-c", INTO_A_BUCKET, wanted.model_dump_json()], check=True)
    store = Store(bucket.url)
    assert list(store.entries) == [s.index for s in SAMPLES]
    lines = [entry for entry in store.storage.entries() if entry.status == "ok"]
    assert len(lines) == len(SAMPLES)
    assert store.verify(deep=True).clean
    for stored in store:
        assert stored.hidden_states.equal(states_of(stored.input_ids.numpy()))
    assert "replica 0 is lost" in (wanted.run_path / "extraction.log").read_text()


@pytest.mark.slow
def test_a_row_that_changes_meanwhile_ends_the_job_when_what_is_in_flight_is_stored(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Job.samples

    def changed(job: Job) -> Iterator[Sample]:
        yield from itertools.islice(whole(job), 60)
        raise DatasetError("row 60 changed while the job ran")

    wanted = parameters("slow", concurrency=1)
    with opened(wanted) as servers:
        job = extract.prepare(wanted, servers)
        monkeypatch.setattr(Job, "samples", changed)
        with pytest.raises(DatasetError, match="row 60"):
            extract.run(job, servers)
        monkeypatch.setattr(Job, "samples", whole)
        assert all(replica.shard is None for replica in servers.replicas)
        assert_nobody_writes(wanted)
        assert extract.run(extract.prepare(wanted, servers), servers).is_whole
    assert_all_once(wanted.store_path)


@pytest.mark.slow
def test_a_replica_that_is_lost_when_a_job_ends_is_started_again_for_the_next(
    parameters: Any,
) -> None:
    wanted = parameters("slow", limit=40)
    with opened(wanted) as servers:
        assert extract.run(extract.prepare(wanted, servers), servers).is_whole
        lost = servers.replicas[1]
        assert lost.facts is not None
        os.kill(lost.facts.pid, signal.SIGKILL)  # between two jobs
        wanted = wanted.model_copy(update={"limit": 0})
        assert extract.run(extract.prepare(wanted, servers), servers).is_whole
        assert lost.facts is not None or lost in servers.starting.values()
    assert_all_once(wanted.store_path)


DRIVER = """
import sys
from fakes.replica import run
from hslib.parameters import ExtractionParameters
run(ExtractionParameters.model_validate_json(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_killed_driver_takes_its_cluster_with_it_and_the_job_goes_on_when_run_again(
    parameters: Any,
) -> None:
    wanted = parameters("slow")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, wanted.model_dump_json()])
    try:
        while sum(ok_lines(wanted.store_path).values()) < 20:
            assert driver.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        started = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.wait()
    go_later = {"ray::RuntimeEnvAgent", "ray::DashboardAgent"}
    wait_until("its cluster's end", lambda: set(names_of(started)) <= go_later, 5)
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    stored = len(ok_lines(wanted.store_path))
    assert stored < len(SAMPLES)
    result = run(wanted)
    assert (result.totals.already_done, result.totals.ok) == (stored, len(SAMPLES) - stored)
    assert_all_once(wanted.store_path)


def names_of(processes: list[psutil.Process]) -> Iterator[str]:
    """Of those that are alive."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process.name()


@pytest.mark.slow
def test_a_replica_that_does_not_come_up_is_given_up_and_the_others_do_it_all(
    parameters: Any,
) -> None:
    wanted = parameters("broken-1")
    assert run(wanted).is_whole
    state = read_progress(wanted.run_path)
    assert state is not None
    assert state.replicas[1].state == "given up after 3 starts: no such model"
    assert_all_once(wanted.store_path)


@pytest.mark.slow
def test_a_replica_that_says_nothing_any_more_is_named_and_replaced(parameters: Any) -> None:
    wanted = parameters(
        "slow", max_attempts=1, request_timeout_s=5.0, dump_timeout_s=2.0, server_wait_s=1.0
    )
    with opened(wanted) as servers:
        job = extract.prepare(wanted, servers)
        victim = servers.ready[0].pid
        when_stored(wanted, 20, lambda: os.kill(victim, signal.SIGSTOP))
        assert extract.run(job, servers).is_whole
    assert_all_once(wanted.store_path)
    log = (wanted.run_path / "extraction.log").read_text()
    assert re.search(r"replica 0 is lost: no word of it for (8|9|1\d) s", log)


@pytest.mark.slow
def test_a_job_begins_with_the_replicas_that_have_room_and_the_others_join_it(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @ray.remote(num_cpus=3)
    class Other:
        def here(self) -> None: ...

    monkeypatch.setattr(opening, "_ROOM_S", 3.0)
    other = Other.remote()
    ray.get(other.here.remote())
    wanted = parameters("slow", concurrency=1)
    with opened(wanted) as servers:
        assert [found.state for found in servers.replicas].count("waiting for room") == 1
        job = extract.prepare(wanted, servers)
        when_stored(wanted, 3, lambda: ray.kill(other))
        assert extract.run(job, servers).is_whole
        ends = time.monotonic() + 60
        while len(servers.ready) < 2:  # if the job was too short for it
            assert time.monotonic() < ends, "the other replica got no room"
            servers.meet_starters(0.5)
    assert_all_once(wanted.store_path)


@pytest.mark.slow
def test_when_none_comes_up_the_reason_is_told(parameters: Any) -> None:
    with pytest.raises(
        ServerError, match=r"no replica came up: 0: given up after 3 .* no such model"
    ):
        run(parameters("broken-0", "broken-1"))


@pytest.mark.slow
def test_a_lost_replicas_rows_wait_while_its_journal_may_still_be_written(parameters: Any) -> None:
    wanted = parameters("slow", "impatient", num_replicas=1)
    held: list[Any] = []

    def kill_and_hold() -> None:
        storage = open_storage(wanted.store_path)
        os.kill(servers.ready[0].pid, signal.SIGSTOP)
        busy = [storage.lock(name, name) for name in storage.locked() if "-part-" in name]
        taken = [lock for lock in busy if is_held(lock)]
        os.kill(servers.ready[0].pid, signal.SIGKILL)
        for lock in taken:
            while is_held(lock):
                time.sleep(0.001)
            lock.acquire()
            held.append(lock)

    with opened(wanted) as servers:
        job = extract.prepare(wanted, servers)
        when_stored(wanted, 20, kill_and_hold)
        with pytest.raises(JobError, match=r"no replica is at work: .* is in use by another job"):
            extract.run(job, servers)
    stored = len(ok_lines(wanted.store_path))
    assert 20 <= stored < len(SAMPLES)
    assert len(held) == 1
    held[0].release()
    assert run(wanted).totals.ok == len(SAMPLES) - stored
    assert_all_once(wanted.store_path)


def is_held(lock: Any) -> bool:
    try:
        lock.acquire()
    except JobError:
        return True
    lock.release()
    return False


def test_replicas_ask_for_gpus_where_there_are_any_and_each_fits_on_one_node() -> None:
    cpus = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 9.0}}]
    assert demand(cpus, 8) == {"CPU": 1.0}
    assert room(cpus, {"CPU": 1.0}) == 4
    gpus = [{"Alive": True, "Resources": {"CPU": 9.0, "GPU": n}} for n in (8.0, 4.0, 17.0)]
    assert demand(gpus, 8) == {"GPU": 8.0}
    assert room(gpus, {"GPU": 8.0}) == 3


@pytest.mark.parametrize("address", ["127.0.0.1:9", "no-such-host.invalid:6379", "127.0.0.1:99999"])
def test_an_address_where_nobody_listens_is_said_at_once(address: str) -> None:
    with pytest.raises(ServerError, match=f"no Ray cluster answers at {address}"):
        connection.require_listening(address)


def test_a_cluster_without_room_for_one_replica_is_said(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "demand", lambda *_: {"CPU": 64.0})
    with pytest.raises(ServerError, match="no room for a replica"):
        run(parameters())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ray_address": "", "num_replicas": 2}, "needs a ray_address"),
        ({"server_url": "http://127.0.0.1:9"}, "exclude each other"),
        ({"dump_dir": ["/a"], "server_url": ["http://127.0.0.1:9"]}, "exclude each other"),
        ({"scan_scope": "directory"}, "somebody else runs"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(
    parameters: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        parameters(**values)
