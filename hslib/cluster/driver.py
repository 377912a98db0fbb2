"""Hands a job's rows to the replicas of a cluster until every row has its outcome."""

import threading
import time
from typing import Any

from hslib.cluster.blocks import Block, Blocks
from hslib.cluster.replica import BlockReport, Problem, of_replica
from hslib.cluster.replicas import DEPTH, Cluster, Slot, first_line
from hslib.errors import HslibError, JobError, StoreError
from hslib.job.extractor import failure
from hslib.job.interrupt import Interrupts
from hslib.job.prepare import Job
from hslib.job.progress import Progress, ReplicaState
from hslib.parameters import ServerParameters
from hslib.store import JournalMark, StoreWriter, combine

_OPENING = "opening the store"
_TURN_S = 0.5  # how long to wait for an answer before looking round
_END_S = 120.0
_FENCE_S = 300.0  # how long a lost replica's lock may stay held (an NFS server's lease is 90 s)


class Driver:
    """Runs one job on a cluster's replicas.

    A replica that is lost (its actor, server or node) is replaced; what it committed is read from
    its journal, and the rest of its blocks is handed out again.
    """

    def __init__(self, cluster: Cluster, job: Job, writer: StoreWriter, progress: Progress) -> None:
        parameters = job.parameters
        self._cluster, self._job, self._writer, self._progress = cluster, job, writer, progress
        at_once = parameters.concurrency * parameters.tokens_per_request
        self._blocks = Blocks(
            job.samples(),
            job.plan.todo_tokens,
            block_tokens=max(parameters.tokens_per_request, 2 * at_once // DEPTH),
            least_tokens=parameters.tokens_per_request,
            most_deaths=parameters.max_attempts,
        )
        # what a row may take at the very most, and as much as a server may be away
        a_try_s = parameters.request_timeout_s + parameters.dump_timeout_s
        self._patience_s = parameters.max_attempts * a_try_s + parameters.server_wait_s
        self._fatal: Exception | None = None
        self._interrupted = self._told_to_stop = False
        self._worked_at = time.monotonic()  # when a replica was last at work
        progress.replicas = self.told

    def told(self) -> tuple[ReplicaState, ...]:
        """How each replica stands."""
        now = time.monotonic()
        return tuple(slot.told(now) for slot in self._cluster.slots)

    def run(self) -> bool:
        """False when an interrupt ended it early.

        A second interrupt abandons what is in flight and is raised.

        Raises:
            HslibError, OSError: what no replica could survive, no replica is left, or the dataset
                changed; what is in flight is finished first.
        """
        for slot in self._cluster.slots:
            slot.ok, slot.began_at = 0, 0.0
            if slot.facts is not None:
                self._begin(slot)
            elif slot.state == "lost":  # when an earlier job ended
                self._cluster.start(slot)
        with Interrupts() as interrupts:
            while self._goes_on():
                self._interrupted = interrupts.count > 0
                if interrupts.count > 1:
                    for slot in self._cluster.slots:
                        self._cluster.drop(slot)
                    raise KeyboardInterrupt
        self._end_all()
        if self._fatal is not None:
            raise self._fatal
        return not self._interrupted

    @property
    def _stopping(self) -> bool:
        return self._interrupted or self._fatal is not None

    def _is_busy(self) -> bool:
        """Whether rows are with replicas, or are left for them."""
        slots = self._cluster.slots
        if any(slot.blocks or slot.lost for slot in slots):
            return True
        return not self._stopping and not self._blocks.is_empty()

    def _goes_on(self) -> bool:
        """A turn, False when none is left; what goes wrong here lets replicas finish too."""
        try:
            if not self._is_busy():
                return False
            self._turn()
        except (HslibError, OSError) as error:
            self._fatal = self._fatal or error
        return True

    def _turn(self) -> None:
        if not self._stopping:
            self._hand_out()
        elif not self._told_to_stop:
            self._stop_all()
        if self._cluster.calls:
            for slot, what, ref, answer in self._cluster.answers(_TURN_S):
                self._take(slot, what, ref, answer)
        else:
            time.sleep(_TURN_S)
        for slot in self._cluster.slots:
            if slot.lost:
                self._recover(slot)
            elif slot.blocks and slot.silent_s() > self._patience_s:
                self._lose(slot, f"no word of it for {slot.silent_s():.0f} s")
        if self._is_busy():
            self._require_replicas()

    def _require_replicas(self) -> None:
        """Raises :class:`JobError` when none is left, or none comes back in time."""
        slots, now = self._cluster.slots, time.monotonic()
        if any(slot.is_working for slot in slots):
            self._worked_at = now
        # one that has room ends its start by itself; the others wait for room
        wait_s = ServerParameters().start_timeout_s + self._job.parameters.server_wait_s
        if all(slot.is_over for slot in slots) or now - self._worked_at > wait_s:
            raise JobError(
                "no replica is at work: " + "; ".join(slot.state for slot in slots),
                fix="see the replicas' logs and the cluster's free resources; run again to resume",
            )

    def _hand_out(self) -> None:
        """Fill up the replicas, one block each in turn."""
        working = [slot for slot in self._cluster.slots if slot.is_working]
        for _ in range(DEPTH):
            for slot in working:
                held = slot.blocks.values()
                if len(held) >= DEPTH or any(block.is_suspect for block in held):
                    continue
                block = self._blocks.next(len(working), is_idle=not held)
                if block is not None:
                    ref = slot.actor.extract.remote(block.samples)
                    if not slot.blocks:
                        slot.heard_at = time.monotonic()
                    slot.blocks[ref] = block
                    self._cluster.calls[ref] = (slot, "extract")

    def _begin(self, slot: Slot) -> None:
        slot.state = _OPENING
        parameters = of_replica(self._job.parameters, slot.number)
        ref = slot.actor.begin.remote(parameters, self._job.manifest)
        self._cluster.calls[ref] = (slot, "begin")

    def _take(self, slot: Slot, what: str, ref: Any, answer: Any) -> None:
        """One answer of a replica."""
        if what == "extract" and ref not in slot.blocks:
            return  # lost meanwhile: its journal tells what became of that block
        slot.heard_at = time.monotonic()
        if what == "place":
            self._cluster.placed(slot, answer)
        elif what == "start":
            problem = self._cluster.started(slot, answer, self._job.plan.longest)
            if problem:
                self._lose(slot, problem)
            elif not self._stopping:
                self._begin(slot)
        elif isinstance(answer, JournalMark):
            slot.mark, slot.state = answer, "working"
            slot.began_at = slot.began_at or time.monotonic()
        elif isinstance(answer, BlockReport):
            self._count(slot, slot.blocks.pop(ref), answer)
        elif isinstance(answer, Problem):
            self._meet(slot, answer)
        else:
            self._lose(slot, first_line(answer))

    def _count(self, slot: Slot, block: Block, report: BlockReport) -> None:
        """A block came back: what is committed of it, and what is not."""
        if report.ok:
            slot.starts = 0
        slot.ok += report.ok
        self._progress.stored(
            report.last_index, report.num_tokens, report.size_bytes, report.request_s, report.ok
        )
        for row in report.failures:
            self._progress.failed(row.index, row.num_tokens, row.check, row.reason)
        if report.problem is not None:
            if report.problem.kind == "replica":  # else the rows are not to blame
                self._hand_out_again(block, report.unfinished, report.problem.text)
            self._meet(slot, report.problem)

    def _meet(self, slot: Slot, problem: Problem) -> None:
        """What a replica says of itself: it is replaced, or the job ends."""
        if problem.kind == "replica":
            self._lose(slot, problem.text)
        elif self._fatal is None:
            slot.state = f"stopped: {first_line(problem.text)}"
            self._fatal = JobError(f"replica {slot.number} stopped the job: {problem.text}")

    def _lose(self, slot: Slot, why: str) -> None:
        """A replica is gone; its blocks wait until its journal can't grow any more."""
        if slot.is_over or slot.lost:
            return
        self._progress.log.error("replica %d is lost: %s", slot.number, why)
        slot.lost, slot.lost_at = list(self._cluster.drop(slot).values()), time.monotonic()
        slot.state = "lost"
        if not slot.lost:
            self._restart(slot, why)
            return
        slot.is_fenced = threading.Event()
        threading.Thread(target=self._fence, args=(slot.mark, slot.is_fenced), daemon=True).start()

    def _restart(self, slot: Slot, why: str) -> None:
        if not self._stopping:
            self._cluster.replace(slot, why)

    def _recover(self, slot: Slot) -> None:
        """Settle a lost replica's blocks by its journal, once nobody writes there any more."""
        assert slot.mark is not None, "blocks are handed out to replicas that have begun"
        if not slot.is_fenced.is_set():
            if time.monotonic() - slot.lost_at > _FENCE_S:
                slot.lost = []
                self._fatal = self._fatal or JobError(
                    f"replica {slot.number} is lost, but its journal's lock is still held: it may "
                    "be writing",
                    journal=slot.mark.journal,
                    fix="end that process, or wait for the file server, and run again to resume",
                )
            return
        blocks, slot.lost = slot.lost, []
        state = combine(self._writer.storage.entries_since(slot.mark))
        for block in blocks:
            rows = [s for s in block.samples if s.index not in state.stored]
            stored = [state.stored[s.index] for s in block.samples if s.index in state.stored]
            failed = [state.failed[s.index] for s in rows if s.index in state.failed]
            slot.ok += len(stored)
            if stored:
                slot.starts = 0
            for entry in stored:
                self._progress.stored(
                    entry.index, entry.num_tokens, entry.size_bytes, entry.latency_s
                )
            for entry in failed:
                self._progress.failed(entry.index, entry.num_tokens, "journal", entry.reason)
            left = [s.index for s in rows if s.index not in state.failed]
            self._hand_out_again(block, left, "the replica died")
        self._restart(slot, "it died")

    def _fence(self, mark: JournalMark, is_fenced: threading.Event) -> None:
        """Wait until nobody can write to a journal any more; an object store's lock takes long."""
        ends = time.monotonic() + _FENCE_S
        while time.monotonic() < ends:
            lock = self._writer.storage.lock(mark.journal, mark.journal)
            try:
                lock.acquire()
            except (JobError, StoreError):
                time.sleep(_TURN_S)
                continue
            lock.release()
            is_fenced.set()
            return

    def _hand_out_again(self, block: Block, unfinished: list[int], why: str) -> None:
        """Rows whose replica died; one that replicas die of is recorded as failed."""
        for sample in self._blocks.survive(block, unfinished):
            reason = f"replicas died whenever they were asked for this row alone; the last: {why}"
            self._writer.record(failure(sample, reason, self._job.parameters.max_attempts))
            self._progress.failed(sample.index, sample.num_tokens, "replica died", reason)

    def _stop_all(self) -> None:
        self._told_to_stop = True
        self._progress.log.warning("stopping: finishing what is in flight")
        for slot in self._cluster.slots:
            if slot.blocks:
                slot.actor.stop.remote()

    def _end_all(self) -> None:
        """Every replica closes the store; what is in flight has come back."""
        import ray

        begun = [slot for slot in self._cluster.slots if slot.is_working]
        ending = [slot.actor.end.remote() for slot in begun]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=_END_S)
        for slot in begun:
            slot.state = "done"
        for slot in self._cluster.slots:
            if slot.state == _OPENING:  # it would hold the journal when the next job begins
                self._cluster.drop(slot)
                slot.state = "lost"
