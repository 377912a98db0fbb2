"""One sample's file: where it lies, its exact header, and whether it is what was committed."""

import json
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hslib.journal import Entry
from hslib.manifest import Manifest
from hslib.tensorfile import TensorFileError, header_bytes, open_tensors

SAMPLE_FORMAT = "hslib-sample-1"


@dataclass(frozen=True)
class Fault:
    """Why a stored sample is not what its journal line says."""

    index: int
    path: str
    check: str
    detail: str


def sample_file(index: int) -> str:
    """Where a sample lives below the store."""
    return f"samples/{index // 1000:05d}/{index:08d}.safetensors"


def sample_header(entry: Entry, manifest: Manifest) -> bytes:
    """The exact header of a sample's file, from its journal line."""
    states = (entry.num_tokens, len(manifest.boundaries) + 1, manifest.hidden_size)
    tensors = {
        "hidden_states": ("BF16", states),
        "input_ids": ("I64", (entry.num_tokens,)),
        "loss_mask": ("U8", (entry.num_tokens,)),
    }
    metadata = {
        "format": SAMPLE_FORMAT,
        "index": str(entry.index),
        "id": entry.id,
        "digest": entry.digest,
        "boundaries": json.dumps(list(manifest.boundaries)),
        "checksum": entry.checksum,
    }
    return header_bytes(tensors, metadata)


def check_file(store: Path, entry: Entry, manifest: Manifest, deep: bool) -> Fault | None:
    """Compare one file with its journal line; None when all is well.

    Raises:
        OSError: it could not be read (too many open files, a disk's error): that says nothing
            of the sample, which must not be taken for bad.
    """
    path = store / entry.file

    def fault(check: str, detail: str) -> Fault:
        return Fault(entry.index, str(path), check, detail)

    try:
        size = path.stat().st_size
        if size != entry.size_bytes:
            return fault("size", f"{size} bytes, journal says {entry.size_bytes}")
        if not deep:
            return None
        file = open_tensors(path)
    except FileNotFoundError:
        return fault("exists", "the file is gone")
    except TensorFileError as error:
        return fault("readable", str(error))
    # padding may differ between versions of this kit; the sizes and the checksum hold it in place
    if file.header[8:].rstrip(b" ") != sample_header(entry, manifest)[8:].rstrip(b" "):
        return fault("header", "not the header that its journal line implies")
    checksum = xxhash.xxh3_64_hexdigest(file.data.data)
    if checksum != entry.checksum:
        return fault("checksum", f"{checksum}, journal says {entry.checksum}")
    ids = file.arrays["input_ids"].astype("<i4")
    if xxhash.xxh3_128_hexdigest(ids.data) != entry.digest:
        return fault("digest", "the ids are not the ones that were filed")
    return None
