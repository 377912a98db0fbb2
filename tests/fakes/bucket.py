"""A real S3 server (moto's) on loopback, buckets in it, and a proxy that meddles on the way."""

import contextlib
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest

from hslib.store.bucket.objects import Objects

KEY, SECRET, TOKEN = "HSLIBKEYNOTINFILES", "hslib/secret+not/in/any/file", "hslibtokennotinfiles"
PLACES = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_MAX_ATTEMPTS": "1",  # s3fs has tries of its own
}
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": TOKEN,
}

# What to do with a request: pass it on, drop it half way, do it and drop the answer, or answer
# with an S3 error of this code and status.
Fate = Literal["pass", "cut", "mute"] | tuple[int, str]


class Bucket:
    """An empty bucket; :attr:`url` is a store's place in it."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
        self.name, self.url = name, f"s3://{name}/states/kimi"
        self.endpoint, self._monkeypatch = endpoint, monkeypatch
        self.objects = Objects(self.url)  # straight to the server, whatever is set later
        self.objects._filesystem().call_s3("create_bucket", Bucket=name)

    def through(self, url: str) -> None:
        """From now on the kit reaches the server by this URL."""
        self._monkeypatch.setenv("AWS_ENDPOINT_URL", url)

    def names(self, prefix: str = "") -> list[str]:
        """Objects below the store's prefix."""
        return [found.name for found in self.objects.list(prefix)]

    def upload(self, store: Path) -> str:
        """Copy a store's files as they are; returns where they are then."""
        copy = Objects(f"s3://{self.name}/copy")
        for path in store.rglob("*"):
            if path.is_file() and not path.name.endswith(".lock"):
                copy.put(str(path.relative_to(store)), path.read_bytes())
        return copy.url

    def samples(self) -> list[str]:
        return self.names("samples/")

    def unfinished_uploads(self) -> int:
        found = self.objects._filesystem().call_s3("list_multipart_uploads", Bucket=self.name)
        return len(found.get("Uploads", []))


class Meddler:
    """A proxy in front of an S3 server; ``judge(method, path, body)`` decides on each request."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("http://").split(":")
        self.judge: Callable[[str, str, bytes], Fate] = lambda *_: "pass"
        self.seen: list[tuple[str, str, bytes]] = []
        self.without: tuple[str, ...] = ()  # headers that the server does not get to see
        self.silent_on: tuple[str, ...] = ()  # headers that PUT and POST do not answer with
        self.sizes_given: list[int] = []  # bytes of the answers
        self.last_again: Callable[[], int] = lambda: 0  # sends the latest request once more
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args: object) -> None:
                pass

            def relay(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.seen.append((self.command, self.path, body))
                outer.last_again = lambda: self.pass_on(body).getresponse().status
                fate = outer.judge(self.command, self.path, body)
                if isinstance(fate, tuple):
                    self.refuse(*fate)
                    return
                onward = self.pass_on(body[: len(body) // 2] if fate == "cut" else body)
                with contextlib.closing(onward):
                    if fate == "cut":
                        self.drop()
                        return
                    answer = onward.getresponse()
                    content = answer.read()
                outer.sizes_given.append(len(content))
                if fate == "mute":
                    self.drop()
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    dropped = () if self.command in ("GET", "HEAD") else outer.silent_on
                    own = ("connection", "transfer-encoding", "content-length")
                    if name.lower() not in (*own, *dropped):
                        self.send_header(name, value)
                length = answer.getheader("content-length") if self.command == "HEAD" else None
                self.send_header("content-length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = relay  # noqa: N815

            def pass_on(self, body: bytes) -> HTTPConnection:
                onward = HTTPConnection(host, int(port))
                onward.putrequest(self.command, self.path, True, True)
                for name, value in self.headers.items():
                    if name.lower() not in ("expect", *outer.without):
                        onward.putheader(name, value)
                onward.endheaders(body)
                return onward

            def drop(self) -> None:
                self.close_connection = True
                self.connection.close()

            def refuse(self, status: int, code: str) -> None:
                text = f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>"
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text.encode())

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def puts(self, part: str) -> list[tuple[str, bytes]]:
        """Paths and bodies of the PUTs whose path has this part, in order."""
        return [
            (path, body) for method, path, body in self.seen if method == "PUT" and part in path
        ]
