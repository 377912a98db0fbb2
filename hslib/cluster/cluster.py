"""The replicas of a job on a Ray cluster: an actor each, with a server of its own.

Ray places the actors, and restarts those that die. What a replica committed stands in journals in
the shared store; nothing rests on an actor's word.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hslib.cluster.messages import ReplicaFacts
from hslib.cluster.shards import Shard
from hslib.errors import HslibError, ServerError
from hslib.job import ReplicaState
from hslib.server import JobLock, ServerCheck, require_same

MOST_STARTS = 3  # of a replica, without a shard finished between
_SILENT_S = 30.0  # after which it is said


@dataclass(eq=False)
class ReplicaHandle:
    """A replica as the driver sees it: its actor may be restarted, its number stays."""

    number: int
    actor: Any
    state: str = "waiting for room"
    facts: ReplicaFacts | None = None  # None: its server is not up
    shard: Shard | None = None  # in work
    is_over: bool = False  # given up
    starts: int = 0  # without a shard finished between
    ok: int = 0  # rows of this job
    began_at: float = 0.0  # when it got its first shard of this job
    heard_at: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self.facts is not None and self.shard is None

    def silent_s(self) -> float:
        """For how long nothing was heard of it."""
        return time.monotonic() - self.heard_at

    def told(self) -> ReplicaState:
        """For ``progress.json``."""
        elapsed = time.monotonic() - self.began_at if self.began_at else float("inf")
        state = self.state
        if self.shard is not None and self.silent_s() > _SILENT_S:
            state = f"no word for {self.silent_s():.0f} s"
        return ReplicaState(
            number=self.number,
            host=self.facts.host if self.facts else "",
            state=state,
            ok=self.ok,
            samples_per_s=self.ok / max(elapsed, 1e-9),
        )


class Cluster:
    """Stands where a host's endpoints stand in a job on one host.

    Args:
        make_actor: number -> a Ray actor with :class:`hslib.cluster.replica.Replica`'s methods,
            which Ray restarts when its process dies.
        is_ours: whether this process joined Ray for this job, and so leaves it at the end.
    """

    def __init__(self, num_replicas: int, make_actor: Callable[[int], Any], is_ours: bool) -> None:
        self._is_ours = is_ours
        self.locks: list[JobLock] = []  # held until close()
        self.replicas = [ReplicaHandle(n, make_actor(n)) for n in range(num_replicas)]
        self.starting: dict[Any, ReplicaHandle] = {}  # by the call of ``start``
        self._places: dict[Any, ReplicaHandle] = {}  # by the call of ``place``
        self._check: ServerCheck | None = None

    @property
    def ready(self) -> list[ReplicaFacts]:
        """The checked ones, by number."""
        return [replica.facts for replica in self.replicas if replica.facts is not None]

    @property
    def check(self) -> ServerCheck:
        """Of the first that came up; the others serve the same."""
        if self._check is None or not self.ready:
            raise ServerError("no replica is ready", fix="open the servers again")
        return self._check

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

    def dump_dirs(self) -> dict[str, str]:
        """None here, likewise."""
        return {}

    def disks(self) -> dict[str, Path]:
        """None here: the dumps lie on the replicas' hosts."""
        return {}

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Each replica claims its own dump directory."""
        yield

    def start(self, replica: ReplicaHandle, why: str = "") -> None:
        """Have its server started as soon as the cluster has room; given up after some starts.

        Args:
            why: the last start, or the server that ran, came to an end.
        """
        replica.facts = None
        if replica.starts >= MOST_STARTS:
            replica.state = f"given up after {replica.starts} starts: {first_line(why)}"
            replica.is_over = True
            return
        replica.starts += 1
        replica.state = "waiting for room"
        # -1: an actor that Ray restarts meanwhile gets the call again
        self._places[replica.actor.place.options(max_task_retries=-1).remote()] = replica
        self.starting[replica.actor.start.options(max_task_retries=-1).remote()] = replica

    def started(self, call: Any, longest_row: int = 0) -> None:
        """Take what came of a start.

        Args:
            longest_row: tokens that a running job needs it to take.
        """
        replica = self.starting.pop(call)
        replica.heard_at = time.monotonic()
        try:
            facts = answer_of(call)
            if self._check is None:
                self._check = facts.check
            require_same("the first", self._check, f"replica {replica.number}", facts.check)
            if facts.longest_row < longest_row:
                raise ServerError(
                    f"it takes {facts.longest_row} tokens, the job's longest row has {longest_row}"
                )
        except Exception as error:
            self.start(replica, str(error))
        else:
            replica.facts, replica.state = facts, "ready"

    def see_places(self) -> None:
        """Where actors have got room; if one died, its start tells."""
        import ray

        done, _ = ray.wait(list(self._places), num_returns=len(self._places), timeout=0)
        for call in done:
            replica = self._places.pop(call)
            with contextlib.suppress(Exception):
                host = ray.get(call)
                if replica.facts is None and not replica.is_over:
                    replica.state = f"starting on {host}"

    def meet_starters(self, timeout_s: float, longest_row: int = 0) -> None:
        """Take what has come of starts, waiting for one for a while."""
        import ray

        if self.starting:
            done, _ = ray.wait(list(self.starting), timeout=timeout_s)
            for call in done:
                self.started(call, longest_row)
        if self._places:
            self.see_places()

    def given_up(self) -> int:
        return sum(replica.is_over for replica in self.replicas)

    def states(self) -> str:
        """In words, for an error."""
        return "; ".join(f"{replica.number}: {replica.state}" for replica in self.replicas)

    def close(self) -> str:
        """Stop all replicas and their servers; says what was done."""
        import ray

        closing = [r.actor.close.remote() for r in self.replicas if r.facts is not None]
        with contextlib.suppress(Exception):
            ray.wait(closing, num_returns=len(closing), timeout=60.0)
        for replica in self.replicas:
            with contextlib.suppress(Exception):
                ray.kill(replica.actor)
            replica.facts = None
        if self._is_ours:
            ray.shutdown()
        for lock in self.locks:
            lock.end()
        return f"The {len(closing)} servers that were started for this job are stopped."


def answer_of(call: Any) -> Any:
    """A finished call's answer.

    Raises:
        HslibError, OSError: what the replica raised.
        ray.exceptions.RayError: the actor is gone.
    """
    import ray

    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HslibError | OSError):
            raise error.cause from error
        raise


def first_line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
