"""One dump on disk: ``hidden_states.safetensors``, ``meta.json``, ``done``.

Rows are written through a memory map into a file that is allocated at its full size
first, so a full file system is an error here and never a SIGBUS. The directory is filled
under a temporary name and appears by rename, complete.

File format: safetensors (8 bytes of little-endian header length, JSON, raw tensors).
"""

import json
import mmap
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

_BLOCK_ROWS = 16  # a block of 4 x 7168 states in float32 stays inside a core's cache
_INFINITY_BITS = 0x7F80  # |x| as bf16 bits orders like |x|; this and above is inf or nan


def header_bytes(num_tokens: int, num_states: int, hidden_size: int) -> bytes:
    """The safetensors header of a dump, padded to 8 bytes; hidden_states come first."""
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
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def state_bytes(num_tokens: int, num_states: int, hidden_size: int) -> int:
    """Bytes that one dump will occupy, its small files not counted."""
    return num_tokens * (num_states * hidden_size * 2 + 4) + 512


class DumpFile:
    """A dump under construction. Not thread-safe: one writer owns it.

    Args:
        root: the dump directory.
        shape: ``(num_tokens, num_states, hidden_size)``; aux states in order, final last.

    Raises:
        OSError: when the file can't be allocated (ENOSPC on a full tmpfs).
    """

    def __init__(self, root: Path, name: str, shape: tuple[int, int, int]) -> None:
        self.target = root / name
        self.next_row = 0
        self.chunks: list[list[int]] = []
        self._shape = shape
        self._dir = root / f".tmp-{os.getpid()}-{name}"
        shutil.rmtree(self._dir, ignore_errors=True)
        self._dir.mkdir(mode=0o700)
        try:
            self._map()
        except OSError:
            self.discard()
            raise

    def _map(self) -> None:
        tokens, states, hidden = self._shape
        header = header_bytes(*self._shape)
        count = tokens * states * hidden
        size = len(header) + count * 2 + tokens * 4
        path = self._dir / "hidden_states.safetensors"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._mapped = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._mapped[: len(header)] = header
        offset = len(header)
        self.hidden_states = torch.frombuffer(
            self._mapped, dtype=torch.bfloat16, count=count, offset=offset
        ).view(tokens, states, hidden)
        self.input_ids = np.frombuffer(
            self._mapped, dtype="<i4", count=tokens, offset=offset + count * 2
        )

    def append(
        self, input_ids: torch.Tensor, aux: torch.Tensor, final: torch.Tensor, start: int
    ) -> None:
        """Store rows: ids ``[t]``, aux bf16 ``[t, K*H]`` side by side, final bf16 ``[t, H]``."""
        count, (_, states, hidden) = len(input_ids), self._shape
        rows = self.hidden_states[start : start + count]
        rows[:, :-1].copy_(aux.view(count, states - 1, hidden))
        rows[:, -1].copy_(final)
        self.input_ids[start : start + count] = input_ids.numpy()
        self.next_row = start + count
        self.chunks.append([start, count])

    def publish(self, meta: dict[str, Any]) -> None:
        """Write ``meta.json`` and ``done`` and let the directory appear under its name."""
        states = self.hidden_states.view(torch.int16).numpy()
        meta = {
            **meta,
            "num_tokens": self._shape[0],
            "hidden_size": self._shape[2],
            "dtype": "bfloat16",
            "chunks": self.chunks,
            "checksums": {
                "hidden_states": xxhash.xxh3_64_hexdigest(states.data),
                "input_ids": xxhash.xxh3_64_hexdigest(self.input_ids.data),
            },
            "layers": layer_stats(self.hidden_states),
        }
        (self._dir / "meta.json").write_text(json.dumps(meta))
        (self._dir / "done").touch()
        shutil.rmtree(self.target, ignore_errors=True)
        self._dir.rename(self.target)

    def discard(self) -> None:
        """Forget the dump and free its space."""
        shutil.rmtree(self._dir, ignore_errors=True)


def write_error(root: Path, name: str, error: dict[str, Any]) -> None:
    """Publish ``{name}/error.json`` in place of a dump."""
    temporary = root / f".tmp-{os.getpid()}-{name}.error"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    (temporary / "error.json").write_text(json.dumps(error))
    shutil.rmtree(root / name, ignore_errors=True)
    temporary.rename(root / name)


def layer_stats(hidden_states: torch.Tensor) -> list[dict[str, Any]]:
    """Per state: finite, absmax, mean L2 norm over tokens, share of zeros.

    Args:
        hidden_states: bf16 ``[T, L, H]`` on the CPU. Read once, block by block, so that the
            float32 copy never leaves the cache (a plain ``vector_norm`` takes 8x as long).
    """
    tokens, states, hidden = hidden_states.shape
    bits = hidden_states.view(torch.int16).numpy()
    largest = np.zeros(states, dtype=np.int16)
    norm_sum = torch.zeros(states, dtype=torch.float64)
    zeros = np.zeros(states, dtype=np.int64)
    magnitude = np.empty((min(_BLOCK_ROWS, tokens), states, hidden), dtype=np.int16)
    for start in range(0, tokens, _BLOCK_ROWS):
        block = bits[start : start + _BLOCK_ROWS]
        absolute = np.bitwise_and(block, 0x7FFF, out=magnitude[: len(block)])
        np.maximum(largest, absolute.max(axis=(0, 2)), out=largest)
        if not absolute.min():
            zeros += (absolute == 0).sum(axis=(0, 2))
        values = hidden_states[start : start + _BLOCK_ROWS].float()
        norm_sum += torch.linalg.vector_norm(values, dim=-1).sum(dim=0, dtype=torch.float64)
    absmax = torch.from_numpy(largest).view(torch.bfloat16).tolist()
    return [
        {
            "finite": bool(largest[i] < _INFINITY_BITS),
            "absmax": absmax[i] if largest[i] < _INFINITY_BITS else None,
            "mean_l2": _number(float(norm_sum[i]) / tokens),
            "zero_share": float(zeros[i]) / (tokens * hidden),
        }
        for i in range(states)
    ]


def _number(value: float) -> float | None:
    """JSON has no NaN or Infinity."""
    return value if np.isfinite(value) else None
