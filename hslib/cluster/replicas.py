"""The same job on a Ray cluster: one actor a replica, the driver here.

Ray places, starts and watches processes; nothing rests on its word. What a replica committed
stands in its own journal in the shared store, which is read when the replica is lost, and only
once its lock shows that nobody writes there any more.
"""

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hslib.cluster.blocks import Block
from hslib.cluster.replica import Problem, Replica, ReplicaFacts, of_replica
from hslib.errors import ServerError
from hslib.job.progress import ReplicaState
from hslib.parameters import ExtractionParameters
from hslib.server.check import ServerCheck
from hslib.server.endpoints import require_same
from hslib.store import JournalMark

DEPTH = 4  # blocks with a replica at once; together twice what it can have in flight
MOST_STARTS = 3  # in a row, without a row extracted between
_SILENT_S = 30.0  # after which it is said
_LEAST_WAIT_S = 120.0  # for the first replica to get room
_ROOM_S = 30.0  # how long a replica may wait for room before the job begins without it
_OBJECT_STORE_BYTES = 256 << 20  # blocks of ids are small; the rest of /dev/shm is for dumps


def connect(address: str, replicas: int) -> bool:
    """Join a cluster, or start one here for ``local``; whether this call did.

    Raises:
        ServerError: no cluster answers there.
    """
    import ray

    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, replicas),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        return True
    require_listening(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error
    return True


def require_listening(address: str) -> None:
    """Raises :class:`ServerError` when nobody listens at ``HOST:PORT``: Ray tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto" and the like: Ray knows where
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ServerError:
    return ServerError(
        f"no Ray cluster answers at {address}: {error}",
        fix="ray start --head --port 6379 on one host, ray start --address HOST:6379 on the "
        "others, then ray_address = HOST:6379; or ray_address = 'local'",
    )


def demand(nodes: list[dict[str, Any]], tp_size: int) -> dict[str, float]:
    """What one replica asks of its node: GPUs where the cluster has any, else a CPU. Pure."""
    has_gpus = any(node["Resources"].get("GPU") for node in nodes)
    return {"GPU": float(tp_size)} if has_gpus else {"CPU": 1.0}


def room(nodes: list[dict[str, Any]], wanted: dict[str, float]) -> int:
    """How many replicas the living nodes could hold, each on one node. Pure."""
    return sum(
        min(int(node["Resources"].get(name, 0) // amount) for name, amount in wanted.items())
        for node in nodes
        if node["Alive"]
    )


@dataclass
class Slot:
    """A replica's place: its actor may be lost and replaced, its number and journal stay."""

    number: int
    actor: Any = None
    state: str = "starting"
    facts: ReplicaFacts | None = None
    mark: JournalMark | None = None
    blocks: dict[Any, Block] = field(default_factory=dict)  # by the call that has it
    starts: int = 0  # in a row, without a row extracted between
    lost: list[Block] = field(default_factory=list)
    lost_at: float = 0.0
    is_fenced: threading.Event = field(default_factory=threading.Event)  # nobody writes there
    began_at: float = 0.0
    heard_at: float = 0.0  # when it last answered, or was given something to do
    ok: int = 0

    @property
    def is_working(self) -> bool:
        return self.state == "working"

    @property
    def is_over(self) -> bool:
        return self.state.startswith("given up")

    def silent_s(self) -> float:
        """For how long nothing was heard of it."""
        return time.monotonic() - self.heard_at

    def told(self, now: float) -> ReplicaState:
        elapsed = max(now - self.began_at, 1e-9) if self.began_at else float("inf")
        host = self.facts.host if self.facts else ""
        state = self.state
        if self.is_working and self.blocks and self.silent_s() > _SILENT_S:
            state = f"no word for {self.silent_s():.0f} s"
        return ReplicaState(
            number=self.number,
            host=host,
            state=state,
            ok=self.ok,
            samples_per_s=self.ok / elapsed,
        )


class Cluster:
    """The replicas of a job; stands where a host's servers stand in the other way to run one.

    Args:
        make_actor: number -> a Ray actor with :class:`hslib.cluster.replica.Replica`'s methods.
    """

    def __init__(self, num_replicas: int, make_actor: Callable[[int], Any], is_ours: bool) -> None:
        self._make_actor, self._is_ours = make_actor, is_ours
        self.slots = [Slot(number) for number in range(num_replicas)]
        self.calls: dict[Any, tuple[Slot, str]] = {}  # what was asked of whom
        self._proof: ServerCheck | None = None

    @property
    def ready(self) -> list[ReplicaFacts]:
        """The proven ones, by number."""
        return [slot.facts for slot in self.slots if slot.facts is not None]

    @property
    def check(self) -> ServerCheck:
        """Of the first that came up; the others serve the same."""
        if self._proof is None or not self.ready:
            raise ServerError("no replica is ready", fix="open the servers again")
        return self._proof

    @property
    def longest_row(self) -> int:
        return min(facts.longest_row for facts in self.ready)

    def dump_room_bytes(self) -> int:
        return min(facts.dump_room_bytes for facts in self.ready)

    def facts(self) -> dict[str, str]:
        """For a table."""
        hosts = Counter(facts.host for facts in self.ready)
        count = f"{len(self.ready)} replicas on {len(hosts)} host(s), started for this job"
        return self.check.facts() | {"server": count}

    def disks(self) -> dict[str, Path]:
        return {}

    @contextmanager
    def claimed(self, _scan_scope: str) -> Iterator[None]:
        """Each replica claims its own dump directory."""
        yield

    def start(self, slot: Slot) -> None:
        """Ask for a new actor; its server starts as soon as the cluster has room for it."""
        slot.actor, slot.facts, slot.mark = self._make_actor(slot.number), None, None
        slot.state, slot.starts = "waiting for room", slot.starts + 1
        self.calls[slot.actor.place.remote()] = (slot, "place")
        self.calls[slot.actor.start.remote()] = (slot, "start")

    def placed(self, slot: Slot, answer: Any) -> None:
        """Take the answer to where an actor is; if it died, its start tells."""
        if isinstance(answer, str):
            slot.state = f"starting on {answer}"

    def drop(self, slot: Slot) -> dict[Any, Block]:
        """Kill the slot's actor and forget what was asked of it; its blocks."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(slot.actor)
        self.calls = {ref: call for ref, call in self.calls.items() if call[0] is not slot}
        slot.facts, blocks, slot.blocks = None, slot.blocks, {}
        return blocks

    def answers(self, timeout_s: float) -> list[tuple[Slot, str, Any, Any]]:
        """(slot, what was asked, the call, its answer or the Ray error) of finished calls."""
        import ray

        asked = list(self.calls)
        ray.wait(asked, timeout=timeout_s)  # for one
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=0)  # and all there are by then
        found = []
        for ref in done:
            slot, what = self.calls.pop(ref)
            try:
                found.append((slot, what, ref, ray.get(ref)))
            except ray.exceptions.RayError as error:
                found.append((slot, what, ref, error))
        return found

    def started(self, slot: Slot, answer: Any, longest_row: int = 0) -> str:
        """Take a start's answer; "" or what was wrong with it.

        Args:
            longest_row: tokens that a running job needs it to take.
        """
        if not isinstance(answer, ReplicaFacts):
            return answer.text if isinstance(answer, Problem) else first_line(answer)
        if self._proof is None:
            self._proof = answer.check
        try:
            require_same("the first", self._proof, f"replica {slot.number}", answer.check)
        except ServerError as error:
            return str(error)
        if answer.longest_row < longest_row:
            return f"it takes {answer.longest_row} tokens, the job's longest row has {longest_row}"
        slot.facts, slot.state = answer, "ready"
        return ""

    def meet_starters(self, timeout_s: float) -> str:
        """Before or between jobs: who came up, and another try for who did not; the last reason."""
        problem = ""
        for slot, what, _ref, answer in self.answers(timeout_s) if self.calls else ():
            if what == "place":
                self.placed(slot, answer)
            elif wrong := self.started(slot, answer):
                problem = wrong
                self.replace(slot, problem)
        return problem

    def replace(self, slot: Slot, why: str) -> None:
        """Another actor for a slot that lost its own; given up when that does not help."""
        self.drop(slot)
        if slot.starts >= MOST_STARTS:
            slot.state = f"given up after {slot.starts} starts: {first_line(why)}"
        else:
            self.start(slot)

    def given_up(self) -> int:
        return sum(slot.is_over for slot in self.slots)

    def close(self) -> str:
        """Stop all replicas and their servers; says what was done."""
        import ray

        closing = [slot.actor.close.remote() for slot in self.slots if slot.facts is not None]
        with contextlib.suppress(Exception):
            ray.wait(closing, num_returns=len(closing), timeout=60.0)
        for slot in self.slots:
            self.drop(slot)
        if self._is_ours:
            ray.shutdown()
        return f"The {len(closing)} servers that were started for this job are stopped."


def open_cluster(
    parameters: ExtractionParameters,
    on_progress: Callable[[str], None] = lambda _line: None,
    replica_class: type = Replica,
) -> Cluster:
    """Start and prove the replicas, as many as the cluster has room for now.

    The others wait for room, and join the job when there is some.

    Raises:
        ServerError: no cluster, no room for a single replica, or none of them comes up.
    """
    import ray

    is_ours = connect(parameters.ray_address, parameters.num_replicas)
    wanted = demand(ray.nodes(), parameters.tp_size)
    actor_class = ray.remote(replica_class).options(
        num_cpus=wanted.get("CPU", 0),
        num_gpus=wanted.get("GPU", 0),
        max_concurrency=DEPTH + 4,
        scheduling_strategy="SPREAD",
    )
    cluster = Cluster(
        parameters.num_replicas,
        lambda number: actor_class.remote(number, of_replica(parameters, number)),
        is_ours,
    )
    try:
        fits = room(ray.nodes(), wanted)
        if not fits:
            raise ServerError(
                f"the cluster has no room for a replica: it needs {wanted} on one node",
                nodes=[node["Resources"] for node in ray.nodes() if node["Alive"]],
                fix="lower tp_size, or add a node that has them",
            )
        _await_replicas(cluster, max(parameters.server_wait_s, _LEAST_WAIT_S), on_progress)
    except BaseException:
        cluster.close()
        raise
    on_progress(f"ready: {len(cluster.ready)} replicas came back right with a canary request")
    return cluster


def _await_replicas(cluster: Cluster, wait_s: float, on_progress: Callable[[str], None]) -> None:
    """Until all that have room are ready, one at least; a failed start is tried again.

    Raises:
        ServerError: none came up, or none got room in ``wait_s``; with the last one's reason.
    """
    problem, told = "", ""
    for slot in cluster.slots:
        cluster.start(slot)
    began_at = changed_at = time.monotonic()
    while True:
        problem = cluster.meet_starters(1.0) or problem
        states = Counter(slot.state for slot in cluster.slots)
        line = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        if line != told:
            on_progress(f"replicas: {line}")
            told, changed_at = line, time.monotonic()
        waiting, now = states["waiting for room"], time.monotonic()
        if len(cluster.ready) + cluster.given_up() + waiting < len(cluster.slots):
            continue  # some are starting
        if not waiting or (cluster.ready and now - changed_at > _ROOM_S):
            break
        if not cluster.ready and now - began_at > wait_s:
            problem = f"no replica got room in {wait_s:g} s: the cluster's nodes are in use"
            break
    if not cluster.ready:
        raise ServerError(f"no replica came up; the last: {problem}", fix="see its server.log")


def first_line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
