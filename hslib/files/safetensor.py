"""safetensors files as bytes: exact headers, and arrays that are views of a mapped file.

The safetensors library does not give the bytes, which this kit hashes, compares and copies once.
Format (huggingface/safetensors README): 8 bytes of little-endian header length, JSON,
tensors without gaps.
"""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hslib.errors import HslibError
from hslib.files.write import LARGE, PAGE

# bfloat16 and float8 have no NumPy type: their bits travel as integers
_NUMPY = {"BF16": "<u2", "F8_E4M3": "u1", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1"}
_MAX_HEADER = 1 << 20


class TensorFileError(HslibError):
    """The file is not a whole safetensors file."""


def header_bytes(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """The header for ``{name: (dtype, shape)}``; the tensors follow in that order.

    Padded to 8 bytes; to a page from 1 MB of tensors on, for maps and direct writes.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape)) * np.dtype(_NUMPY[dtype]).itemsize
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % (PAGE if offset >= LARGE else 8))
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file in a map or in memory; arrays are views into it."""

    path: str
    header: bytes
    metadata: dict[str, str]
    arrays: dict[str, np.ndarray]
    data: np.ndarray  # uint8, everything behind the header


def open_tensors(path: Path) -> TensorFile:
    """Map a file, and check that its header and its size agree.

    Arrays have the stored shapes; BF16 is given as its bits, uint16, and F8_E4M3 as uint8.

    Raises:
        TensorFileError: cut short, padded, or not safetensors at all.
        FileNotFoundError: not there.
    """
    with path.open("rb") as handle:
        size = handle.seek(0, 2)
        if size < 8:
            raise TensorFileError("the file is cut short", path=str(path), size_bytes=size)
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    return parse_tensors(str(path), mapped)


def parse_tensors(path: str, content: mmap.mmap | bytes) -> TensorFile:
    """The same for a file's content; ``path`` is only for messages."""
    try:
        return _parse(path, content, len(content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorFileError(f"not a safetensors file: {error}", path=path) from error


def _parse(path: str, mapped: mmap.mmap | bytes, size: int) -> TensorFile:
    length = int.from_bytes(mapped[:8], "little")
    if length > min(size - 8, _MAX_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(mapped[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = np.frombuffer(mapped, np.uint8, offset=8 + length)
    arrays, end = {}, 0
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, end_here = info["data_offsets"]
        if first != end or end_here > len(data):
            raise TensorFileError(
                "the file is cut short or its tensors do not join",
                path=path,
                tensor=name,
                expected=end_here,
                got=len(data),
            )
        dtype = np.dtype(_NUMPY[info["dtype"]])
        arrays[name] = data[first:end_here].view(dtype).reshape(info["shape"])
        end = end_here
    if end != len(data):
        raise TensorFileError(
            "the file is longer than its tensors", path=path, expected=end, got=len(data)
        )
    return TensorFile(path, mapped[: 8 + length], metadata, arrays, data)
