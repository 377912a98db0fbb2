"""A fingerprint of a checkpoint's weights: names, shapes and a few bytes of every tensor.

It does not depend on where the files are, or on how the tensors are spread over them. It takes
seconds for a terabyte. It does not see a change that leaves every sampled byte as it was.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import xxhash

_SAMPLE_BYTES = 64
_AT_ONCE = 32  # reads in flight: on a network file system they mostly wait
_BATCH = 512  # tensors per task
_STRETCHES = 64  # per file of another format than safetensors
_LONGEST_HEADER = 1 << 30


class Tensor(NamedTuple):
    """Where a tensor's bytes lie."""

    name: str
    kind: str  # dtype and shape
    start: int  # offset in the file
    stop: int


def fingerprint(files: Sequence[Path]) -> dict[str, str]:
    """``{group of tensors: xxh3-128}`` of a checkpoint's files.

    A group is a name up to its first number (``model.layers.4``), or the name without its last
    part (``model.norm``). Each tensor adds its name, dtype, shape, and 64 bytes at its start,
    middle and end. A file of another format is a group: its size, and 64 times 64 bytes.

    Raises:
        OSError: a file can't be read.
        ValueError: a safetensors file has no valid header.
    """
    tasks = [task for path in sorted(set(files)) for task in _tasks(path)]
    groups = defaultdict[str, list[bytes]](list)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for digests in pool.map(lambda task: _digests(*task), tasks):
            for group, digest in digests:
                groups[group].append(digest)
    return {
        group: xxhash.xxh3_128_hexdigest(b"".join(sorted(digests)))
        for group, digests in sorted(groups.items())
    }


def group_of(name: str) -> str:
    """``model.layers.4.mlp.up_proj.weight`` -> ``model.layers.4``; ``lm_head.weight`` ->
    ``lm_head``."""
    numbered = re.match(r".*?\.\d+(?=\.|$)", name)
    return numbered[0] if numbered else name.rpartition(".")[0] or name


def read_header(path: Path) -> list[Tensor]:
    """The table of contents of a safetensors file.

    Raises:
        ValueError: it is not a safetensors file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, path.stat().st_size - 8):
            raise ValueError(f"{path} is no safetensors file: its header would be {length} bytes")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [
        Tensor(
            name,
            f"{found['dtype']} {found['shape']}",
            *(8 + length + offset for offset in found["data_offsets"]),
        )
        for name, found in header.items()
    ]


def _tasks(path: Path) -> Iterator[tuple[Path, list[Tensor]]]:
    if path.suffix != ".safetensors":
        yield path, []
        return
    tensors = read_header(path)
    for first in range(0, len(tensors), _BATCH):
        yield path, tensors[first : first + _BATCH]


def _digests(path: Path, tensors: list[Tensor]) -> list[tuple[str, bytes]]:
    """``(group, digest)`` of each tensor, or of the whole file when it has none."""
    file = os.open(path, os.O_RDONLY)
    try:
        if not tensors and path.suffix != ".safetensors":
            size = os.fstat(file).st_size
            return [(path.name, _digest(file, Tensor(path.name, "file", 0, size), _STRETCHES))]
        return [(group_of(tensor.name), _digest(file, tensor, 3)) for tensor in tensors]
    finally:
        os.close(file)


def _digest(file: int, tensor: Tensor, stretches: int) -> bytes:
    size = tensor.stop - tensor.start
    digest = xxhash.xxh3_128(f"{tensor.name}\0{tensor.kind}\0{size}\0".encode())
    if size <= stretches * _SAMPLE_BYTES:
        digest.update(os.pread(file, size, tensor.start))
        return digest.digest()
    for number in range(stretches):
        offset = (size - _SAMPLE_BYTES) * number // (stretches - 1)
        digest.update(os.pread(file, _SAMPLE_BYTES, tensor.start + offset))
    return digest.digest()
