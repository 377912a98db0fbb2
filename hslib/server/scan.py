"""Clear and scan: dumps under names that are the server's own, as in the case study.

Before a request the dump directory is emptied; whatever appears after it must be that row's. So
one row is in flight at a time, and two dumps after one request are an error that shows both. A row
that is being stored may lose its files to the next request's clearing: its dump is mapped by then.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hslib.dataset import Sample
from hslib.errors import DumpError, RequestError, ServerError
from hslib.server.endpoint import Answer, Endpoint


@dataclass
class ScanningEndpoint(Endpoint):
    """An endpoint for ``scan_scope = "directory"``: its server names dumps itself.

    Raises:
        ServerError: the server dumps only what the kit named.
    """

    dump_prefix = ""

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
        self.dumps.clear(self.dumps.names())
        try:
            self._client.prefill([sample.input_ids])
            return [self.dumps.load(self._scan(sample))]
        except (RequestError, DumpError) as error:
            return [self._gone() or error]

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
