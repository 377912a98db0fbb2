"""Servers are real, and shared by every test that can share one: each costs about 20 s."""

import functools
import logging
import signal
import ssl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from fakes.bucket import CREDENTIALS, PLACES, Bucket, Meddler
from fakes.server import FakeServer
from make import models as tiny_models
from make.reference import CHUNK
from real.servers import end_server
from real.warm import WarmServers, of_this_run

from hslib.parameters import ServerParameters
from hslib.server import launch as server
from hslib.store.bucket import lock as bucket_lock

# The longest files of the slow part, with which its two processes begin: a long one that comes last
# would keep one of them waiting.
_FIRST = (
    "06_training_export.ipynb",
    "test_flow.py",
    "test_smallest_loads.py",
    "test_interrupts.py",
    "test_processes.py",
    "test_ranks.py",
)


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebook 06 trains for minutes, and 02 starts a server as 03 does: in the slow part."""
    place = {name: number for number, name in enumerate(_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(_FIRST)))
    for item in items:
        if item.path.name == "06_training_export.ipynb":
            item.add_marker(pytest.mark.timeout(1800))
        if item.path.name in ("02_server_launch.ipynb", "06_training_export.ipynb"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny random models by family, built once."""
    built: dict[str, Path] = {}

    def build(family: str) -> Path:
        if family not in built:
            built[family] = tiny_models.build(family, tmp_path_factory.mktemp(family))
        return built[family]

    return build


@pytest.fixture(scope="session")
def warm() -> WarmServers:
    """Servers forked from a process that has SGLang imported."""
    return of_this_run()


@pytest.fixture(scope="session")
def start_server(
    tmp_path_factory: pytest.TempPathFactory, warm: WarmServers
) -> Iterator[Callable[..., server.ServerState]]:
    """Start servers that are stopped at the end of the session, if not before."""
    started: list[server.ServerState] = []

    def start(model: Path, **parameters: object) -> server.ServerState:
        run_dir = tmp_path_factory.mktemp("run")
        values = {"run_dir": str(run_dir), "model_path": str(model), "layers": "1,3,5"}
        with mock.patch.object(server, "spawn", warm.spawn):
            state = server.start(ServerParameters.from_values({**values, **parameters}))
        started.append(state)
        return state

    yield start
    for state in started:
        end_server(state)


@pytest.fixture(scope="session")
def llama_server(
    model_of: Callable[[str], Path], start_server: Callable[..., server.ServerState]
) -> server.ServerState:
    """A tiny Llama that dumps every prefill, as the case study's server did."""
    return start_server(model_of("llama"), chunked_prefill_size=CHUNK, dump_all=True)


@pytest.fixture(scope="session")
def object_server() -> Iterator[str]:
    """The URL of moto's S3 server on loopback."""
    from aiobotocore.httpsession import AIOHTTPSession
    from botocore.loaders import JSONFileLoader
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # hundreds of clients would each read the same megabytes: S3's API, and certificates
    read = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    patch = pytest.MonkeyPatch()
    patch.setattr(JSONFileLoader, "load_file", lambda _self, path: read(path))
    context = ssl.create_default_context()
    patch.setattr(AIOHTTPSession, "_build_verify_context", lambda _self: context)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    patch.undo()


@pytest.fixture
def fake(tmp_path: Path, model_of: Callable[[str], Path]) -> Iterator[FakeServer]:
    """A hand-made server of a tiny Llama."""
    server = FakeServer(tmp_path / "dumps", model_of("llama"))
    yield server
    server.stop()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job ignores SIGINT, and so would the jobs in and below it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def bucket(object_server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket of the test's own, and the environment in which the kit finds it."""
    for name, value in {**PLACES, **CREDENTIALS, "AWS_ENDPOINT_URL": object_server}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)
    return Bucket(f"b-{uuid.uuid4().hex[:12]}", monkeypatch, object_server)


@pytest.fixture
def meddler(bucket: Bucket) -> Iterator[Meddler]:
    """The kit's requests to the bucket's server go through this."""
    proxy = Meddler(bucket.endpoint)
    bucket.through(proxy.url)
    yield proxy
    proxy.stop()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock in a bucket is renewed, and seen to be renewed, in moments instead of a minute."""
    monkeypatch.setattr(bucket_lock, "RENEW_S", 0.1)
    monkeypatch.setattr(bucket_lock, "_LOOK_EVERY_S", 0.2)
