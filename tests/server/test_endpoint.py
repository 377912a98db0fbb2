"""An endpoint whose server comes back: whose dumps count, and where its lock is."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.server import FakeServer
from hs_dump.hooks import write_plugin_json
from make.rows import random_sample

from hslib.errors import JobError, RequestError
from hslib.files import Lock
from hslib.parameters import ExtractionParameters
from hslib.server.check import check_server
from hslib.server.client import ServerClient
from hslib.server.dumps import Dump, DumpDir, request_id
from hslib.server.endpoint import Endpoint


class Successor:
    """The run's server, in whose place another one was started by hand."""

    is_the_jobs = False

    def __init__(self, server: FakeServer) -> None:
        self.url, self.dump_path = server.url, server.dumps

    def is_alive(self) -> bool:
        return True

    def find_successor(self) -> bool:
        return True


def test_the_lock_moves_with_the_server(
    fake: FakeServer, tmp_path: Path, model_of: Callable[[str], Path]
) -> None:
    later = FakeServer(tmp_path / "dumps-of-the-next", model_of("llama"))
    dumps = DumpDir(fake.dumps)
    with ServerClient(fake.url) as client:
        check = check_server(client, dumps)
    wanted = ExtractionParameters(run_dir=str(tmp_path / "run"), server_wait_s=20.0)
    endpoint = Endpoint(fake.url, dumps, "", check, wanted, Successor(later))  # type: ignore[arg-type]
    endpoint.claim()
    fake.stop()
    try:
        endpoint.await_return(OSError("gone"), threading.Event())
        assert (endpoint.url, endpoint.dumps.root) == (later.url, later.dumps)
        with pytest.raises(JobError, match="in use by another job"):
            Lock(later.dumps / ".lock", "it").acquire()
        with Lock(fake.dumps / ".lock", "the one that was left"):
            pass
        endpoint.release()
        with Lock(later.dumps / ".lock", "it"):
            pass
    finally:
        later.stop()
        fake.start()  # for the fixture to stop


def test_a_dump_that_another_process_wrote_is_refused_even_when_the_first_one_serves_again(
    fake: FakeServer, tmp_path: Path
) -> None:
    """One server answers, and by the time its dump is looked at the endpoint trusts the next."""
    dumps, sample = DumpDir(fake.dumps), random_sample(0, 9)
    with ServerClient(fake.url) as client:
        wanted = ExtractionParameters(run_dir=str(tmp_path / "run"))
        endpoint = Endpoint(fake.url, dumps, "", check_server(client, dumps), wanted)
        (dump,) = endpoint.send([sample], [request_id(sample, 1)])
        assert isinstance(dump, Dump)
        endpoint.validate(dump, sample)
        write_plugin_json(fake.dumps, json.loads((fake.dumps / "plugin.json").read_text()))
        endpoint.await_return(OSError("gone"), threading.Event())
    with pytest.raises(RequestError, match="started again meanwhile"):
        endpoint.validate(dump, sample)
