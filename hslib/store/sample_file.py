"""A sample's file: its exact header, and the check against its journal line."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from hslib.files import TensorFile, TensorFileError, header_bytes
from hslib.store.contract import Stat, Storage
from hslib.store.entry import Entry
from hslib.store.manifest import Manifest

SAMPLE_FORMAT = "hslib-sample-1"


@dataclass(frozen=True)
class Fault:
    """How a stored sample differs from its journal line."""

    index: int
    file: str
    check: str
    detail: str


def sample_header(entry: Entry, manifest: Manifest) -> bytes:
    """The exact header of a sample's file, from its journal line."""
    states = (entry.num_tokens, manifest.num_states, manifest.hidden_size)
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


def check_file(
    storage: Storage,
    entry: Entry,
    manifest: Manifest,
    deep: bool,
    stat: Callable[[str], Stat] | None = None,
) -> Fault | None:
    """Compare one file with its journal line; None when they agree.

    An object whose ETag is not the journal's is always read, not only when ``deep``: it may be a
    copy of the same bytes, which is no fault.

    Args:
        stat: gives a file's size and ETag; by default ``storage.stat``.

    Raises:
        OSError, StoreError: the file could not be read (too many open files, a disk error, no
            network). The sample may well be good.
    """
    stat = stat or storage.stat
    try:
        found = stat(entry.file)
        if found.size_bytes != entry.size_bytes:
            detail = f"{found.size_bytes} bytes, journal says {entry.size_bytes}"
            return Fault(entry.index, entry.file, "size", detail)
        is_replaced = bool(entry.etag and found.etag and entry.etag != found.etag)
        if not deep and not is_replaced:
            return None
        fault = check_content(entry, manifest, storage.open(entry.file))
    except FileNotFoundError:
        return Fault(entry.index, entry.file, "exists", "the file is gone")
    except TensorFileError as error:
        return Fault(entry.index, entry.file, "readable", str(error))
    if fault is None or not is_replaced:
        return fault
    detail = f"{fault.detail}; somebody wrote another object there (ETag {found.etag})"
    return Fault(entry.index, entry.file, fault.check, detail)


def check_content(entry: Entry, manifest: Manifest, file: TensorFile) -> Fault | None:
    """Compare every byte of an opened file with its journal line; None when they agree."""
    # the padding may differ between versions of this kit; size and checksum cover the rest
    if file.header[8:].rstrip(b" ") != sample_header(entry, manifest)[8:].rstrip(b" "):
        detail = "not the header that its journal line implies"
        return Fault(entry.index, entry.file, "header", detail)
    checksum = xxhash.xxh3_64_hexdigest(file.data.data)
    if checksum != entry.checksum:
        detail = f"{checksum}, journal says {entry.checksum}"
        return Fault(entry.index, entry.file, "checksum", detail)
    ids = file.arrays["input_ids"].astype("<i4")
    if xxhash.xxh3_128_hexdigest(ids.data) != entry.digest:
        return Fault(entry.index, entry.file, "digest", "the ids are not the ones that were filed")
    return None
