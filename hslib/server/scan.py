"""Clear and scan: dumps under names that are the server's own, as in the case study.

Before a request the dump directory is emptied; whatever appears after it must be that row's. So
one row is in flight at a time, and two dumps after one request are an error that shows both. A row
that is being stored may lose its files to the next request's clearing: its dump is mapped by then.

A dump that comes late, after its request was given up, can't be told from the second try's: their
ids are equal, and so are their states. The next request therefore waits for it first, as long as
the first one did. One that comes later still is stored as the second try's, and the second's own
is refused at the next row, whose ids it does not have.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hslib.dataset import Sample
from hslib.errors import DumpError, RequestError, ServerError
from hslib.server.dumps import Dump
from hslib.server.endpoint import Answer, Endpoint

_LOOK_EVERY_S = 0.002


@dataclass
class ScanningEndpoint(Endpoint):
    """An endpoint for ``scan_scope = "directory"``: its server names dumps itself.

    Raises:
        ServerError: the server dumps only what the kit named.
    """

    dump_prefix = ""
    # the digest of a row whose dump did not come, and the server's mark then
    _given_up: tuple[str, tuple[int, int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.samples_per_request = self.most_requests = 1
        if not self.check.plugin.dump_all:
            raise ServerError(
                'scan_scope = "directory" is for servers that name dumps themselves',
                fix='start it with dump_all = True, or use scan_scope = "request"',
            )

    def send(self, samples: Sequence[Sample], _rids: Sequence[str]) -> list[Answer]:
        """Clear, send one row under no name, and take the one dump that appeared."""
        (sample,) = samples
        if self._given_up is not None:
            late = self._late_dump(*self._given_up, sample)
            self._given_up = None
            if late is not None:
                return [late]
        self.dumps.clear(self.dumps.names())
        mark = self.dumps.plugin_mark()
        try:
            self._client.prefill([sample.input_ids])
            return [self.dumps.load(self._scan(sample))]
        except (RequestError, DumpError) as error:
            if not error.fields.keys() & {"status", "got"}:  # the server has not done with it
                self._given_up = sample.digest, mark
            return [self._gone() or error]

    def _late_dump(self, digest: str, mark: tuple[int, int], sample: Sample) -> Dump | None:
        """Wait for the dump of a request that was given up; the dump, if it is this sample's."""
        deadline = time.monotonic() + self.parameters.dump_timeout_s
        while self.dumps.plugin_mark() == mark and time.monotonic() < deadline:
            names = self.dumps.names()
            if names and all(map(self.dumps.is_complete, names)):
                is_its = digest == sample.digest and len(names) == 1
                return self.dumps.load(names[0]) if is_its else None
            time.sleep(_LOOK_EVERY_S)
        return None

    def _scan(self, sample: Sample) -> str:
        """The name of the one dump that appeared.

        Raises:
            DumpError: none in time, or several, with what each of them holds.
        """
        timeout_s = self.parameters.dump_timeout_s
        deadline = time.monotonic() + timeout_s
        while not (names := self.dumps.names()):
            self.require_dump_dir()
            if time.monotonic() > deadline:
                raise DumpError(
                    "no dump appeared after the request",
                    index=sample.index,
                    check="scan",
                    path=str(self.dumps.root),
                    fix="does this server dump into this directory?",
                )
            time.sleep(_LOOK_EVERY_S)
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
