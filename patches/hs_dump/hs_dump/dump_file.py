"""One dump on disk: ``hidden_states.safetensors``, ``meta.json``, ``done``.

Each row is touched once: a block that fits a core's cache is packed, measured, hashed and written.
The file is written and not mapped, since a full tmpfs is then an OSError and not a SIGBUS, and a
page that is written whole need not be zeroed first. The directory is filled under a temporary name
and appears complete, by rename.

File format: safetensors (8 bytes of little-endian header length, JSON, raw tensors).
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from hs_dump.numbers import StateNumbers, bits_of
from hs_dump.proof import finite

_BLOCK_BYTES = 1 << 20
_PAGE, _LARGE = 4096, 1 << 20


def header_bytes(num_tokens: int, num_states: int, hidden_size: int) -> bytes:
    """The safetensors header of a dump; hidden_states come first.

    Padded to 8 bytes; to a page from 1 MB of states on, so that the client can write them to a disk
    directly from the dump's pages.
    """
    states = num_tokens * num_states * hidden_size * 2
    header = {
        "hidden_states": {
            "dtype": "BF16",
            "shape": [num_tokens, num_states, hidden_size],
            "data_offsets": [0, states],
        },
        "input_ids": {
            "dtype": "I32",
            "shape": [num_tokens],
            "data_offsets": [states, states + num_tokens * 4],
        },
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % (_PAGE if states >= _LARGE else 8))
    return len(text).to_bytes(8, "little") + text


def state_bytes(num_tokens: int, num_states: int, hidden_size: int) -> int:
    """Bytes that one dump takes; 512 of them stand for the header and the small files."""
    return num_tokens * (num_states * hidden_size * 2 + 4) + 512


class DumpFile:
    """A dump under construction: append rows in order, then publish or discard.

    Not thread-safe: one writer owns it.

    Args:
        root: the dump directory.
        shape: ``(num_tokens, num_states, hidden_size)``; boundaries in order, final last.

    Raises:
        OSError: from any method, when the file can't be written (ENOSPC on a full tmpfs).
    """

    def __init__(self, root: Path, name: str, shape: tuple[int, int, int]) -> None:
        self.target = root / name
        self.chunks: list[list[int]] = []
        self._shape = shape
        self._ids = np.empty(shape[0], dtype="<i4")
        self._hash, self._numbers = xxhash.xxh3_64(), StateNumbers(shape[1])
        self._witnessed_tokens, self._errors = 0, np.full(shape[1], np.nan)
        self._dir = root / f".tmp-{os.getpid()}-{name}"
        self._fd = -1
        new_directory(self._dir)
        try:
            path = self._dir / "hidden_states.safetensors"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._write(header_bytes(*shape))
        except OSError:
            self.discard()
            raise

    @property
    def next_row(self) -> int:
        """Rows that are written."""
        return sum(count for _, count in self.chunks)

    def append(self, input_ids: torch.Tensor, states: Sequence[torch.Tensor]) -> None:
        """Write the next rows: ids [t], and bf16 [t, H] of each stored state in order."""
        count, (_, num_states, hidden), start = len(input_ids), self._shape, self.next_row
        bits = [bits_of(state) for state in states]
        size = max(1, _BLOCK_BYTES // (num_states * hidden * 2))
        block = np.empty((min(size, count), num_states, hidden), dtype=np.uint16)
        for first in range(0, count, size):
            rows = block[: min(size, count - first)]
            for number, state in enumerate(bits):
                rows[:, number] = state[first : first + size]
            self._write(rows.data.cast("B"))
            self._hash.update(rows.data)
            self._numbers.add(rows)
        self._ids[start : start + count] = input_ids.numpy()
        self.chunks.append([start, count])

    def witnessed(self, tokens: int, errors: np.ndarray) -> None:
        """Add witnessed tokens, and each state's largest error [L] over them; NaN = no witness."""
        self._witnessed_tokens += tokens
        self._errors = np.fmax(self._errors, errors)

    def publish(self, meta: dict[str, Any]) -> None:
        """Write ids, ``meta.json`` and ``done``, then rename the directory to its name."""
        self._write(self._ids.data.cast("B"))
        self._close()
        meta = {
            **meta,
            "num_tokens": self._shape[0],
            "hidden_size": self._shape[2],
            "dtype": "bfloat16",
            "chunks": self.chunks,
            "checksums": {
                "hidden_states": self._hash.hexdigest(),
                "input_ids": xxhash.xxh3_64_hexdigest(self._ids.data),
            },
            "witnessed_tokens": self._witnessed_tokens,
            "layers": [
                numbers | {"witness": _witness(error)}
                for numbers, error in zip(self._numbers.to_list(), self._errors, strict=True)
            ],
        }
        (self._dir / "meta.json").write_text(json.dumps(meta))
        (self._dir / "done").touch()
        put_in_place(self._dir, self.target)

    def discard(self) -> None:
        """Remove the unfinished dump."""
        self._close()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _witness(error: float) -> float | None:
    """An error for JSON, which has no NaN and no infinity; None = no witness."""
    return None if np.isnan(error) else finite(float(error))


def write_error(root: Path, name: str, error: dict[str, Any]) -> None:
    """Publish ``{name}/error.json`` in place of a dump."""
    temporary = root / f".tmp-{os.getpid()}-{name}.error"
    new_directory(temporary)
    (temporary / "error.json").write_text(json.dumps(error))
    put_in_place(temporary, root / name)


def new_directory(path: Path) -> None:
    """Make an empty directory; removes what had its name."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        shutil.rmtree(path)
        path.mkdir(mode=0o700)


def put_in_place(directory: Path, target: Path) -> None:
    """Rename a directory to its name; removes an older one."""
    try:
        directory.rename(target)
    except OSError:
        shutil.rmtree(target)
        directory.rename(target)
