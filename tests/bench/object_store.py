"""(g) Dumps into a bucket (validate, upload, ask, commit) against s3fs writing the same files.

    python tests/bench/object_store.py --samples 8 --tokens 512

The server is moto's, in a process of its own on loopback: it is slow, and answers one request at
a time. Opening the store is not counted.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import Cost, arguments, measure, median, ratio, report
from store_copy import BOUNDARIES, HIDDEN, make_dump, manifest

from hslib.dataset import Sample
from hslib.server.dumps import DumpDir
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import StoreWriter


def serve(addresses: Any) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    addresses.put("http://{}:{}".format(*server.get_host_and_port()))
    time.sleep(3600)


def main() -> None:
    chosen = arguments(__doc__ or "", samples=8, tokens=512, threads=4, turns=7)
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    server = context.Process(target=serve, args=(addresses,), daemon=True)
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": addresses.get(),
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    import s3fs

    plain = s3fs.S3FileSystem(use_listings_cache=False)
    plain.mkdir("bench")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        dumps = DumpDir(name)
        samples = [make_dump(dumps, i, chosen.tokens) for i in range(chosen.samples)]
        size = sum(p.stat().st_size for p in Path(name).rglob("*.safetensors"))
        ours: list[Cost] = []
        theirs: list[Cost] = []
        for turn in range(chosen.turns):
            with StoreWriter(f"s3://bench/ours/{turn}", manifest()) as writer:
                ours.append(measure(in_threads(store_with(dumps, writer), samples, chosen.threads)))
            theirs.append(measure(in_threads(put_with(dumps, plain), samples, chosen.threads)))
            plain.rm("bench/ours", recursive=True)
    server.kill()
    row = {
        "samples": len(samples),
        "tokens": chosen.tokens,
        "GB": size / 1e9,
        "store GB/s": size / 1e9 / median([c.wall_s for c in ours]),
        "s3fs GB/s": size / 1e9 / median([c.wall_s for c in theirs]),
        "store / s3fs": ratio(theirs, ours),
        "store CPU s/GB": median([c.cpu_s for c in ours]) / (size / 1e9),
        "s3fs CPU s/GB": median([c.cpu_s for c in theirs]) / (size / 1e9),
    }
    report("(g) dump to bucket against s3fs", [row], chosen.out)


def store_with(dumps: DumpDir, writer: StoreWriter) -> Callable[[Sample], object]:
    expected = Expected(BOUNDARIES, HIDDEN)

    def store(sample: Sample) -> object:
        dump = dumps.load(f"d{sample.index}")
        return writer.put(sample, *dump.captured(), validate(dump, sample, expected), 1, 0.0)

    return store


def put_with(dumps: DumpDir, plain: Any) -> Callable[[Sample], object]:
    def put(sample: Sample) -> object:
        data = (dumps.root / f"d{sample.index}/hidden_states.safetensors").read_bytes()
        return plain.pipe_file(f"bench/plain/{sample.index}", data)

    return put


def in_threads(
    work: Callable[[Sample], object], samples: list[Sample], threads: int
) -> Callable[[], None]:
    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, samples))

    return run


if __name__ == "__main__":
    main()
