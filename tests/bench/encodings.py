"""(n) The encodings: one core in and out, random rows read, and ``recode`` against ``cp``.

    python tests/bench/encodings.py --samples 48 --tokens 512

States are normal random ones of the case's width: 57,344 bytes a token. All arms of a turn are
measured one after the other. Files are read from the page cache.
"""

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from common import arguments, median, report
from make.rows import random_sample
from store_copy import BOUNDARIES, HIDDEN, manifest

from hslib.files import header_bytes, parse_tensors
from hslib.store import CODECS, Store, StoreWriter, recode_store

LAYER = {"finite": True, "absmax": 1.0, "mean_l2": 1.0, "zero_share": 0.0, "witness": 0.0}


def main() -> None:
    chosen = arguments(__doc__ or "", samples=48, tokens=512, turns=5)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = make_store(folder / "plain", chosen.samples, chosen.tokens)
        size = chosen.samples * chosen.tokens * plain.manifest.state_bytes_per_token
        rows: dict[str, dict[str, Any]] = {name: {"encoding": name} for name in CODECS}
        for encoding, row in rows.items():
            row |= one_core(plain[0].states.whole(), encoding, chosen.turns)
        reading: dict[str, list[float]] = {name: [] for name in CODECS}
        copying: dict[str, list[float]] = {name: [] for name in [*CODECS, "cp"]}
        for _ in range(chosen.turns):
            copying["cp"].append(seconds(lambda: copy(plain, folder / "cp")))
            shutil.rmtree(folder / "cp")
            for encoding in CODECS:
                out = folder / encoding if encoding != "plain" else folder / "again"
                copying[encoding].append(seconds(lambda o=out, e=encoding: recode(plain, o, e)))
                reading[encoding].append(seconds(lambda o=out: read_at_random(Store(o))))
                shutil.rmtree(out)
        for encoding, row in rows.items():
            row["random rows MB/s"] = size / 1e6 / median(reading[encoding])
            row["recode / cp"] = median(
                [a / b for a, b in zip(copying["cp"], copying[encoding], strict=True)]
            )
    report("(n) encodings, states of the case's width", list(rows.values()), chosen.out)


def make_store(path: Path, samples: int, tokens: int) -> Store:
    generator = torch.Generator().manual_seed(0)
    with StoreWriter(path, manifest()) as writer:
        for index in range(samples):
            states = torch.randn((tokens, len(BOUNDARIES) + 1, HIDDEN), generator=generator)
            bits = states.bfloat16().view(torch.uint16).numpy()
            sample = random_sample(index, tokens, vocab_size=1000)
            layers = [LAYER] * bits.shape[1]
            writer.put(sample, bits, layers, xxhash.xxh3_64(bits.data), 1, 0.0)
    return Store(path)


def one_core(bits: np.ndarray, encoding: str, turns: int) -> dict[str, float]:
    """Share of the bytes, and bf16 MB per second in and out, of one thread."""
    codec = CODECS[encoding]
    encoded = codec.encode(bits)
    described = {name: (tensor.dtype, tensor.shape) for name, tensor in encoded.tensors.items()}
    parts = [bytes(tensor.bytes) for tensor in encoded.tensors.values()]
    file = parse_tensors("", header_bytes(described, {}) + b"".join(parts))
    into = min(seconds(lambda: codec.encode(bits)) for _ in range(turns))
    out = min(seconds(codec.kept(file.arrays, bits.shape, "").whole) for _ in range(turns))
    return {
        "bytes left": sum(map(len, parts)) / bits.nbytes,
        "in MB/s": bits.nbytes / 1e6 / max(into, 1e-9),
        "out MB/s": bits.nbytes / 1e6 / max(out, 1e-9),
        "error": max(encoded.errors, default=0.0),
    }


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read_at_random(store: Store) -> None:
    """Every row once, in random order, in one thread, into memory of its own as a batch has it."""
    order = list(store.entries)
    random.Random(0).shuffle(order)
    for index in order:
        store[index].hidden_states.clone()


def recode(plain: Store, out: Path, encoding: Any) -> None:
    recode_store(plain, out, encoding, max_encoding_error=0.1)


def copy(plain: Store, out: Path) -> None:
    """By two processes, synced, as ``recode`` does with its threads."""
    out.mkdir()
    files = [str(plain.path / entry.file) for entry in plain.entries.values()]
    halves = [files[::2], files[1::2]]
    running = [subprocess.Popen(["cp", *half, str(out)]) for half in halves if half]
    assert not any(process.wait() for process in running)
    subprocess.run(["sync", *(str(path) for path in out.iterdir())], check=True)


if __name__ == "__main__":
    main()
