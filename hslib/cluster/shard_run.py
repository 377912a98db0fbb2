"""Hands a job's shards to the replicas of a cluster until every row has its outcome.

A shard whose replica is lost goes to another one: its journal, which is its alone, says what is
done of it. A row that kills servers is found by the replica's extractor, as on one host.
"""

import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from hslib.cluster.cluster import Cluster, ReplicaHandle, answer_of, first_line
from hslib.cluster.messages import ShardReport, of_replica
from hslib.cluster.shards import Shard, count_shards, cut
from hslib.errors import HslibError, JobError, ServerError
from hslib.job import Interrupts, Job, Progress, ReplicaState
from hslib.parameters import ServerParameters

_LOOK_EVERY_S = 1.0
MOST_LOSSES = 3  # of replicas that a shard may cost


class ShardRun:
    """One run of a job on a cluster's replicas."""

    def __init__(self, cluster: Cluster, job: Job, progress: Progress) -> None:
        parameters = job.parameters
        self._cluster, self._job, self._progress = cluster, job, progress
        self._run = secrets.token_hex(3)
        at_once = parameters.concurrency * parameters.tokens_per_request
        todo_tokens = job.plan.todo_tokens
        count = count_shards(todo_tokens, len(cluster.replicas), 2 * at_once)
        self._shards = cut(job.samples(), todo_tokens, count, self._run)
        self._again: deque[Shard] = deque()  # their replica was lost
        self._losses: Counter[int] = Counter()  # by shard
        self._given_up: list[Shard] = []
        self._counted: dict[int, ShardReport] = {}  # by shard: what progress has of it
        self._then: dict[Any, Callable[[Any], None]] = {}  # what is done with a call's answer
        # what a row may take at the very most, and as much as a server may be away
        a_try_s = parameters.request_timeout_s + parameters.dump_timeout_s
        self._patience_s = parameters.max_attempts * a_try_s + parameters.server_wait_s
        self._worked_at = time.monotonic()  # when a replica was last at work
        self._fatal: BaseException | None = None
        self._is_interrupted = self._is_exhausted = False
        progress.replicas = self._told

    def _told(self) -> tuple[ReplicaState, ...]:
        return tuple(replica.told() for replica in self._cluster.replicas)

    def run(self, interrupts: Interrupts | None = None) -> bool:
        """False when an interrupt ended it early.

        A second interrupt abandons what is in flight and is raised.

        Args:
            interrupts: of the process, if this is to heed them.

        Raises:
            HslibError, OSError: what no replica could survive, no replica is left, or the dataset
                changed; what is in flight is finished first.
        """
        for replica in self._cluster.replicas:
            replica.ok, replica.began_at = 0, 0.0
            is_down = replica.facts is None and not replica.is_over
            if is_down and replica not in self._cluster.starting.values():
                self._cluster.start(replica)  # it was lost when an earlier job ended
        interrupts = interrupts or Interrupts()
        while self._goes_on():
            if interrupts.is_urgent:
                self._abandon()
                raise KeyboardInterrupt
            if interrupts.count and not self._is_interrupted:
                self._is_interrupted = True
                self._stop_all()
            self._turn()
        for replica in self._cluster.replicas:
            if replica.is_idle:
                replica.state = "done"
        if self._fatal is None and self._given_up and not self._is_interrupted:
            self._fatal = JobError(
                f"replicas were lost {MOST_LOSSES} times while they had these rows: "
                + "; ".join(shard.rows() for shard in self._given_up),
                fix="see the replicas' logs: is it their hosts' memory? Run again to resume",
            )
        if self._fatal is not None:
            raise self._fatal
        return not self._is_interrupted

    @property
    def _stopping(self) -> bool:
        return self._is_interrupted or self._fatal is not None

    def _goes_on(self) -> bool:
        if any(replica.shard is not None for replica in self._cluster.replicas):
            return True
        return not (self._stopping or (self._is_exhausted and not self._again))

    def _turn(self) -> None:
        """Hand out shards, and take what has come back since."""
        import ray

        try:
            if not self._stopping:
                self._hand_out()
                self._require_replicas()
            calls = [*self._then, *self._cluster.starting]
            if calls:
                ray.wait(calls, timeout=_LOOK_EVERY_S)
            self._cluster.meet_starters(0.0, self._job.plan.longest)
            done, _ = ray.wait(list(self._then), num_returns=len(self._then), timeout=0)
            for call in done:
                self._then.pop(call)(call)
            for replica in self._cluster.replicas:
                if replica.shard is not None and replica.silent_s() > self._patience_s:
                    self._kill(replica)
        except Exception as error:
            self._stop(error)

    def _hand_out(self) -> None:
        for replica in self._cluster.replicas:
            if replica.is_idle:
                shard = self._again.popleft() if self._again else next(self._shards, None)
                if shard is None:
                    self._is_exhausted = True
                    return
                self._give(replica, shard)

    def _give(self, replica: ReplicaHandle, shard: Shard) -> None:
        now = time.monotonic()
        replica.shard, replica.state, replica.heard_at = shard, "working", now
        replica.began_at = replica.began_at or now
        parameters = of_replica(self._job.parameters, replica.number)
        call = replica.actor.extract.remote(parameters, self._job.manifest, shard)
        self._then[call] = lambda call: self._ended(replica, shard, call)
        self._ask(replica, shard)

    def _ask(self, replica: ReplicaHandle, shard: Shard) -> None:
        """Ask how far a shard is; once its answer is there, again."""
        call = replica.actor.told.remote(shard.name)
        self._then[call] = lambda call: self._heard(replica, shard, call)

    def _heard(self, replica: ReplicaHandle, shard: Shard, call: Any) -> None:
        if replica.shard is not shard:
            return
        with contextlib.suppress(Exception):  # the end of its shard tells what is wrong
            report = answer_of(call)
            replica.heard_at = time.monotonic()
            if report is not None:
                self._count(replica, shard, report)
            self._ask(replica, shard)

    def _ended(self, replica: ReplicaHandle, shard: Shard, call: Any) -> None:
        """A shard came back, or its replica is lost."""
        if replica.shard is not shard:
            return  # it was killed, and its shard is another's by now
        replica.shard, replica.heard_at = None, time.monotonic()
        try:
            report = answer_of(call)
        except Exception as error:
            self._fell(replica, shard, error)
            return
        replica.starts, replica.state = 0, "ready"
        self._count(replica, shard, report)

    def _fell(self, replica: ReplicaHandle, shard: Shard, error: Exception) -> None:
        """A shard ended with an error: another replica may do better, or none can."""
        if not _is_the_replicas(error):
            replica.state = f"stopped: {first_line(error)}"
            replica.facts = None  # checked anew before another job
            self._stop(JobError(f"replica {replica.number} stopped the job: {error}"))
            return
        self._progress.log.error("replica %d is lost: %s", replica.number, first_line(error))
        self._lose(shard)
        replica.state, replica.facts = "lost", None
        if not self._stopping:
            self._cluster.start(replica, str(error))

    def _lose(self, shard: Shard) -> None:
        self._losses[shard.number] += 1
        if self._losses[shard.number] < MOST_LOSSES:
            self._again.append(shard)
        else:
            self._given_up.append(shard)

    def _kill(self, replica: ReplicaHandle) -> None:
        """A replica says nothing any more: Ray is to restart it."""
        import ray

        shard, replica.shard = replica.shard, None
        ray.kill(replica.actor, no_restart=False)
        if shard is not None:
            why = f"no word of it for {replica.silent_s():.0f} s"
            self._fell(replica, shard, ServerError(why))

    def _count(self, replica: ReplicaHandle, shard: Shard, report: ShardReport) -> None:
        """Tell the progress what is new of a shard; an earlier try at it counts already."""
        before = self._counted.get(shard.number, ShardReport())
        if report.ok > before.ok:
            new = report.ok - before.ok
            replica.ok += new
            self._progress.stored(
                report.last_index,
                report.num_tokens - before.num_tokens,
                report.size_bytes - before.size_bytes,
                report.request_s,
                new,
            )
        known = {row.index for row in before.failures}
        for row in report.failures:
            if row.index not in known:
                self._progress.failed(row.index, row.num_tokens, row.check, row.reason)
        if report.ok + len(report.failures) >= before.ok + len(before.failures):
            self._counted[shard.number] = report

    def _require_replicas(self) -> None:
        """Raises :class:`JobError` when none is left, or none comes back in time."""
        replicas, now = self._cluster.replicas, time.monotonic()
        if any(replica.facts is not None for replica in replicas):
            self._worked_at = now
        # one that has room ends its start by itself; the others wait for room
        wait_s = ServerParameters().start_timeout_s + self._job.parameters.server_wait_s
        if all(replica.is_over for replica in replicas) or now - self._worked_at > wait_s:
            raise JobError(
                f"no replica is at work: {self._cluster.states()}",
                fix="see the replicas' logs and the cluster's free resources; run again to resume",
            )

    def _stop(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error
            self._stop_all()

    def _stop_all(self) -> None:
        self._progress.log.warning("stopping: finishing what is in flight")
        for replica in self._cluster.replicas:
            if replica.shard is not None:
                replica.actor.stop.remote(self._run)

    def _abandon(self) -> None:
        import ray

        for replica in self._cluster.replicas:
            with contextlib.suppress(Exception):
                ray.kill(replica.actor)
            replica.facts, replica.shard = None, None


def _is_the_replicas(error: Exception) -> bool:
    """Whether another replica may do better; else it is a full disk, a store of another kind."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError):
        return True
    fields = error.fields if isinstance(error, HslibError) else {}
    # a lock that is another's is this host's trouble: it was away for too long
    return isinstance(error, ServerError) or bool(fields.get("down")) or "owner" in fields
