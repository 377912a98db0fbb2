"""A hand-made server: SGLang's three paths, and made-up states dumped by the plugin's own writer.

It shows the faults that a real server won't show on demand; the job's reaction, and not the
states, is what its tests are about.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hs_dump.hooks import write_plugin_json
from make.dumps import BOUNDARIES, proven, put_dump
from make.rows import random_sample

from hslib.store import Store

SAMPLES = [random_sample(i, 10 + i, seed=9) for i in range(12)]

SETTINGS = {
    "version": "0.5.23",
    "model_path": "m",
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "attention_backend": "torch_native",
    "tp_size": 1,
    "dp_size": 1,
    "chunked_prefill_size": -1,
    "disable_radix_cache": True,
    "speculative_algorithm": None,
    "allow_auto_truncate": False,
    "max_req_input_len": 1000,
}


DROP, NO_DUMP = -1, 0  # close the connection; answer 200 and dump nothing


def states_of(ids: np.ndarray) -> torch.Tensor:
    """States bf16 [T, 4, 64] that are a function of the ids."""
    generator = torch.Generator().manual_seed(int(ids.sum()))
    return torch.randn(len(ids), 4, 64, generator=generator).to(torch.bfloat16)


class FakeServer:
    """``misbehave(rid, ids, attempt)`` is called before a dump is made; it may raise or sleep."""

    def __init__(self, dumps: Path, model: Path, port: int = 0) -> None:
        self.dumps, self.model = dumps, model
        self.misbehave: Callable[[str, np.ndarray, int], int | None] = lambda *_: None
        self.states = states_of
        self.requests: list[str] = []
        self.start(port)

    def start(self, port: int = 0, **plugin: Any) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(200, SETTINGS if "server_info" in self.path else {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = outer.generate(body)
                if status is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                metas = [{"meta_info": {"prompt_tokens": len(i)}} for i in body["input_ids"]]
                self.answer(status, metas if status == 200 else {"error": "no"})

            def answer(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the job was killed
                    self.wfile.write(data)

        self.dumps.mkdir(exist_ok=True)
        facts = {
            "model_path": str(self.model),
            "model_class": "LlamaForCausalLM",
            "num_layers": 6,
            "hidden_size": 64,
            "vocab_size": 512,
            "dtype": "bfloat16",
            "device": "cpu",
            "boundaries": list(BOUNDARIES),
            **proven(BOUNDARIES),
        }
        write_plugin_json(self.dumps, {**facts, **plugin})
        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def generate(self, body: dict[str, Any]) -> int | None:
        own = [f"req_{len(self.requests) + n}" for n in range(len(body["input_ids"]))]
        for rid, ids in zip(body.get("rid", own), body["input_ids"], strict=True):
            self.requests.append(rid)
            status = self.misbehave(rid, np.array(ids, np.int32), self.times_asked(rid))
            if status != 0:
                if status is not None:
                    return status if status > 0 else None
                self.dump(rid, np.array(ids, np.int32))
        return 200

    def times_asked(self, rid: str) -> int:
        """How often this sample was asked for, this time included."""
        prefix = "-".join(rid.split("-")[:2]) + "-"
        return sum(known.startswith(prefix) for known in self.requests)

    def dump(self, rid: str, ids: np.ndarray) -> None:
        put_dump(self.dumps, rid, ids, self.states(ids))


def assert_store_is_right(path: Path, indices: list[int] | None = None) -> None:
    store = Store(path)
    assert list(store.entries) == (indices or [s.index for s in SAMPLES])
    assert store.verify(deep=True).clean
    for stored in store:
        assert torch.equal(stored.hidden_states, states_of(stored.input_ids.numpy()))
