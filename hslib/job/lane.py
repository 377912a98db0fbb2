"""One server and its dump directory: send a request, take its dumps, deliver them to the store.

Knows nothing of retries or of other servers.
"""

import threading
import time
from collections.abc import Callable, Sequence

import xxhash

from hslib.dataset import Sample
from hslib.errors import DumpError, JobError, RequestError, ServerError
from hslib.job.scheduler import Budget
from hslib.parameters import ExtractionParameters
from hslib.server.dumps import DUMP_SHARE, Dump, DumpDir, validate
from hslib.server.endpoints import Endpoint

# (sample, its validated dump, the running hash over its states, seconds since it was sent)
Deliver = Callable[[Sample, Dump, "xxhash.xxh3_64", float], None]


class Lane:
    """What a worker needs of a server.

    Args:
        deliver: stores and commits a validated dump.
    """

    def __init__(
        self, serving: Endpoint, parameters: ExtractionParameters, deliver: Deliver
    ) -> None:
        self.serving, self._parameters, self._deliver = serving, parameters, deliver
        self.dumps = DumpDir(serving.dump_path)
        self.client = serving.client(parameters.request_timeout_s)
        free = int(self.dumps.free_bytes() * DUMP_SHARE)
        bytes_at_once = min(free, serving.check.plugin.budget_bytes or free)
        self.budget = Budget(bytes_at_once, parameters.concurrency)
        self._in_flight = threading.Semaphore(parameters.concurrency)  # retries count too
        self._asking = threading.Lock()

    def send(
        self,
        group: Sequence[Sample],
        rids: Sequence[str],
        on_answer: Callable[[], None] = lambda: None,
    ) -> dict[int, Exception]:
        """One request; the samples that did not come through, by index, with their errors.

        Args:
            on_answer: called when the server has answered, before anything is stored.
        """
        if self._parameters.scan_scope == "directory":
            return self._clear_and_scan(group[0])
        self.dumps.clear(rids)
        try:
            with self._in_flight:
                started = time.monotonic()
                self.client.prefill([sample.input_ids for sample in group], rids)
        except RequestError as error:
            return {sample.index: error for sample in group}
        on_answer()
        errors: dict[int, Exception] = {}
        for sample, rid in zip(group, rids, strict=True):
            try:
                self.dumps.wait(rid, self._parameters.dump_timeout_s)
                self._take(sample, rid, started)
            except (DumpError, RequestError) as error:
                errors[sample.index] = error
        return errors

    def _clear_and_scan(self, sample: Sample) -> dict[int, Exception]:
        """Names are opaque: whatever appears after the request must be this sample's."""
        started = time.monotonic()
        self.dumps.clear(self.dumps.names())
        try:
            self.client.prefill([sample.input_ids])
            self._take(sample, self._scan(sample), started)
        except (RequestError, DumpError) as error:
            return {sample.index: error}
        return {}

    def _scan(self, sample: Sample) -> str:
        """The one dump that appeared.

        Raises:
            DumpError: none in time, or several, with what each of them holds.
        """
        timeout_s = self._parameters.dump_timeout_s
        deadline = time.monotonic() + timeout_s
        while not (names := self.dumps.names()):
            if time.monotonic() > deadline:
                raise DumpError(
                    "no dump appeared after the request",
                    index=sample.index,
                    check="scan",
                    path=str(self.dumps.root),
                    fix="does this server dump into this directory?",
                )
            time.sleep(0.002)
        for name in names:
            self.dumps.wait(name, timeout_s)
        names = self.dumps.names()
        if len(names) > 1:
            seen = {name: len(self.dumps.load(name).input_ids) for name in names}
            raise DumpError(
                f"{len(names)} dumps appeared after one request: somebody else uses this server",
                index=sample.index,
                check="scan",
                expected=f"one dump of {sample.num_tokens} tokens",
                got=seen,
                fix='keep other clients away, or use scan_scope = "request"',
            )
        return names[0]

    def _take(self, sample: Sample, name: str, started: float) -> None:
        """Validate, hand over, remove."""
        dump = self.dumps.load(name)
        if self.serving.was_restarted():  # what it serves now is still to be proven
            raise RequestError(
                "the server was started again meanwhile", down=True, index=sample.index
            )
        states_hash = validate(dump, sample, self.serving.check.expected)
        self._deliver(sample, dump, states_hash, time.monotonic() - started)
        self.dumps.remove(name)

    def await_return(self, error: Exception, is_closed: Callable[[], bool]) -> None:
        """Return when a server that went away is back and is still the same one.

        One worker asks, the lane's others wait for its answer.

        Raises:
            JobError: it does not come back in time, or died and nobody will start it again.
            ServerError: another model or other layers came back.
        """
        wait_s = self._parameters.server_wait_s
        with self._asking:
            deadline = time.monotonic() + wait_s
            time.sleep(0.2)  # a server that drops connections and stays up must not be hammered
            while not self._is_back():
                if is_closed() or not self.serving.may_return():
                    raise JobError(
                        f"the server at {self.serving.url} is gone: {error}",
                        down=True,
                        fix="see its log, start it again, and run the job again to resume",
                    ) from error
                if time.monotonic() > deadline:
                    raise JobError(
                        f"the server at {self.serving.url} did not come back within {wait_s:g} s",
                        down=True,
                        fix="start it again, and run the job again to resume",
                    ) from error
                time.sleep(0.5)

    def _is_back(self) -> bool:
        """Whether the server answers and proves itself; it may go away again meanwhile."""
        if not self.client.is_up():
            return False
        try:
            self.serving.check_again()
        except (RequestError, ServerError) as error:
            # a dying server may answer once more, and be gone when it is asked for the proof
            if isinstance(error, ServerError) and not error.fields.get("down"):
                raise
            return False
        return True
