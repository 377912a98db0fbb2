"""Two simulated nodes, two real servers: the demo's rows, and everything that can be killed."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import tenacity
from fakes.replica import ok_lines, when_stored
from ray.cluster_utils import Cluster as RayCluster
from real.warm import WarmServers

from hslib import extract
from hslib.cluster.cluster import Cluster
from hslib.cluster.opening import open_cluster
from hslib.job.progress import read_progress
from hslib.parameters import ExtractionParameters
from hslib.server import launch as server
from hslib.server import processes
from hslib.server.endpoints import open_endpoints
from hslib.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 128
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}


@tenacity.retry(stop=tenacity.stop_after_attempt(3), reraise=True)
def _started() -> RayCluster:
    """Two nodes; on a busy machine Ray's agents may be late, and then a node ends itself."""
    found = RayCluster(initialize_head=True, head_node_args=NODE)
    try:
        found.add_node(num_cpus=1, object_store_memory=100 << 20)
    except BaseException:
        found.shutdown()
        raise
    return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayCluster]:
    patch = pytest.MonkeyPatch()
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    patch.setenv("PYTHONPATH", os.pathsep.join(path))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    found = _started()
    yield found
    ray.shutdown()
    found.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def parameters(
    nodes: RayCluster, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., ExtractionParameters]:
    run_dir = tmp_path_factory.mktemp("cluster")

    def make(store: str, **values: Any) -> ExtractionParameters:
        defaults = {
            "run_dir": str(run_dir),
            "store_dir": str(run_dir / store),
            "ray_address": nodes.address,
            "num_replicas": 2,
            "limit": ROWS,
            "concurrency": 1,  # one row a forward pass: the same bits whoever computes them
            "samples_per_request": 1,
        }
        return ExtractionParameters.from_values({**defaults, **values})

    return make


@pytest.fixture(scope="module")
def servers(
    parameters: Callable[..., ExtractionParameters], warm: WarmServers
) -> Iterator[Cluster]:
    found = open_cluster(parameters("first"), replica_class=warm.replica_class())
    yield found
    found.close()


def run(parameters: ExtractionParameters, servers: Cluster) -> extract.Result:
    return extract.run(extract.prepare(parameters, servers), servers)


def state_of(parameters: ExtractionParameters, number: int) -> server.ServerState:
    found = server.read_state(parameters.run_path / "replicas" / f"{number:05d}")
    assert found is not None
    return found


def wait_until(what: str, is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def assert_same_files(one: Path, other: Path) -> None:
    stores = Store(one), Store(other)
    assert list(stores[0].entries) == list(stores[1].entries) == list(range(ROWS))
    for index, entry in stores[0].entries.items():
        files = [(store.path / store.entries[index].file).read_bytes() for store in stores]
        assert files[0] == files[1], entry.file


def assert_nothing_lost_or_repeated(
    parameters: ExtractionParameters, result: extract.Result, first: Path
) -> None:
    assert result.is_whole
    assert (result.totals.ok, result.totals.asked) == (ROWS, ROWS)
    assert set(ok_lines(parameters.store_path).values()) == {1}
    assert Store(parameters.store_path).verify(deep=True).clean
    assert_same_files(parameters.store_path, first)
    state = read_progress(parameters.run_path)
    assert state is not None
    assert (state.ok, sum(r.ok for r in state.replicas)) == (ROWS, ROWS)


def shares(parameters: ExtractionParameters) -> list[int]:
    """Rows by replica."""
    state = read_progress(parameters.run_path)
    assert state is not None
    return [replica.ok for replica in state.replicas]


@pytest.fixture(scope="module")
def first(parameters: Any, servers: Cluster) -> Path:
    """The store of an undisturbed job."""
    wanted = parameters("first")
    assert run(wanted, servers).is_whole
    assert min(shares(wanted)) >= ROWS // 8
    return Path(wanted.store_path)


def test_two_replicas_on_two_nodes_store_what_one_process_does(
    parameters: Any, servers: Cluster, first: Path
) -> None:
    wanted = parameters("first")
    assert servers.facts()["server"] == "2 replicas on 1 host(s), started for this job"
    own = state_of(wanted, 0)
    alone = parameters(
        "alone",
        run_dir=str(wanted.run_path / "alone"),
        ray_address="",
        num_replicas=1,
        server_url=own.url,
        dump_dir=own.dump_dir,
    )
    fleet = open_endpoints(alone)
    assert extract.run(extract.prepare(alone, fleet), fleet).is_whole
    assert_same_files(first, alone.store_path)


def test_a_killed_actor_and_then_a_killed_server_lose_and_repeat_nothing(
    parameters: Any, servers: Cluster, first: Path
) -> None:
    """In one job: for a while no replica is left."""
    wanted = parameters("killed")
    victim, orphan = servers.ready[0].pid, state_of(wanted, 0)
    when_stored(wanted, 20, lambda: os.kill(victim, signal.SIGKILL))
    when_stored(wanted, 50, lambda: kill_all(state_of(wanted, 1)))
    result = run(wanted, servers)
    assert_nothing_lost_or_repeated(wanted, result, first)
    log = (wanted.run_path / "extraction.log").read_text()
    assert "replica 0 is lost" in log
    kept = wanted.run_path / "replicas" / "00001" / "server.1.log"
    assert kept.exists(), "the server that was killed was started again by its replica"
    wait_until("the server of a killed actor is gone", lambda: not processes.members(orphan))


def test_a_killed_node_loses_and_repeats_nothing(
    parameters: Any, servers: Cluster, nodes: RayCluster, first: Path
) -> None:
    wait_for_both(servers)
    wanted = parameters("node")
    worker = nodes.worker_nodes.copy().pop()
    raylet = worker.all_processes["raylet"][0].process.pid
    parents = [psutil.Process(facts.pid).ppid() for facts in servers.ready]
    assert parents.count(raylet) == 1
    number = parents.index(raylet)
    orphan = state_of(wanted, number)
    when_stored(wanted, 20, lambda: nodes.remove_node(worker, allow_graceful=False))
    result = run(wanted, servers)
    assert_nothing_lost_or_repeated(wanted, result, first)
    assert shares(wanted)[1 - number] > shares(wanted)[number]
    wait_until("the server of a killed node is gone", lambda: not processes.members(orphan))


def wait_for_both(servers: Cluster) -> None:
    """A replica that was lost in the last test has been replaced."""

    def are_ready() -> bool:
        servers.meet_starters(0.5)
        return len(servers.ready) == 2

    wait_until("both replicas are ready", are_ready, 240.0)


def kill_all(state: server.ServerState) -> None:
    for process in processes.members(state):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
