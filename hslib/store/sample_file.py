"""A sample's file: its exact header, and the check against its journal line."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import xxhash

from hslib.files import TensorFile, TensorFileError, header_bytes
from hslib.store.contract import Stat, Storage
from hslib.store.encoding import CODECS, Codec, DecodedStates, KeptStates
from hslib.store.entry import Entry
from hslib.store.manifest import Manifest

_Tensors = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype and shape, in order
SAMPLE_FORMAT = "hslib-sample-1"


@dataclass(frozen=True)
class Fault:
    """How a stored sample differs from its journal line."""

    index: int
    file: str
    check: str
    detail: str


def sample_header(entry: Entry, manifest: Manifest, states: _Tensors) -> bytes:
    """The exact header of a sample's file, from its journal line.

    Args:
        states: dtype and shape of the tensors that keep the states.
    """
    metadata = {
        "format": SAMPLE_FORMAT,
        "index": str(entry.index),
        "id": entry.id,
        "digest": entry.digest,
        "boundaries": json.dumps(list(manifest.boundaries)),
        "checksum": entry.checksum,
    }
    if entry.encoding != "plain":
        metadata["encoding"] = entry.encoding
    return header_bytes(_with_tokens(states, entry), metadata)


def _with_tokens(states: _Tensors, entry: Entry) -> dict[str, tuple[str, tuple[int, ...]]]:
    tokens = (entry.num_tokens,)
    return {**states, "input_ids": ("I64", tokens), "loss_mask": ("U8", tokens)}


def kept_states(entry: Entry, manifest: Manifest, file: TensorFile) -> KeptStates:
    """The states of an opened file.

    Raises:
        TensorFileError: the file does not keep them as its journal line says.
    """
    shape = _shape(entry, manifest)
    states = codec_of(entry).tensors(shape, file.arrays)
    for name, (_, tensor_shape) in _with_tokens(states, entry).items():
        if name not in file.arrays or file.arrays[name].shape != tensor_shape:
            raise TensorFileError(
                f"the file does not keep its states as {entry.encoding}",
                path=file.path,
                tensor=name,
            )
    return codec_of(entry).kept(file.arrays, shape, file.path)


def _other_checksum(entry: Entry, found: str, journal: str) -> Fault:
    return Fault(entry.index, entry.file, "checksum", f"{found}, journal says {journal}")


def _shape(entry: Entry, manifest: Manifest) -> tuple[int, int, int]:
    return entry.num_tokens, manifest.num_states, manifest.hidden_size


def codec_of(entry: Entry) -> Codec:
    if entry.encoding not in CODECS:
        raise TensorFileError(
            f"its encoding {entry.encoding!r} is none of {list(CODECS)}: a newer hslib wrote it"
        )
    return CODECS[entry.encoding]


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
        read = checked_states(entry, manifest, storage.open(entry.file))
    except FileNotFoundError:
        return Fault(entry.index, entry.file, "exists", "the file is gone")
    except TensorFileError as error:
        return Fault(entry.index, entry.file, "readable", str(error))
    if not isinstance(read, Fault):
        return None
    replaced = f"; somebody wrote another object there (ETag {found.etag})" if is_replaced else ""
    return dataclasses.replace(read, detail=read.detail + replaced)


def checked_states(entry: Entry, manifest: Manifest, file: TensorFile) -> DecodedStates | Fault:
    """The states of an opened file, after every byte of it was compared with its journal line.

    Raises:
        TensorFileError: they can't be decoded.
    """
    # the padding may differ between versions of this kit; size and checksum cover the rest
    states = codec_of(entry).tensors(_shape(entry, manifest), file.arrays)
    wanted = sample_header(entry, manifest, states)
    if file.header[8:].rstrip(b" ") != wanted[8:].rstrip(b" "):
        detail = "not the header that its journal line implies"
        return Fault(entry.index, entry.file, "header", detail)
    if entry.file_checksum:
        found = xxhash.xxh3_64_hexdigest(file.data.data)
        if found != entry.file_checksum:
            return _other_checksum(entry, found, entry.file_checksum)
    bits = kept_states(entry, manifest, file).whole()
    checksum = xxhash.xxh3_64(bits.data)
    for name in ("input_ids", "loss_mask"):
        checksum.update(file.arrays[name].data)
    if checksum.hexdigest() != entry.checksum:
        return _other_checksum(entry, checksum.hexdigest(), entry.checksum)
    ids = file.arrays["input_ids"].astype("<i4")
    if xxhash.xxh3_128_hexdigest(ids.data) != entry.digest:
        return Fault(entry.index, entry.file, "digest", "the ids are not the ones that were filed")
    return DecodedStates(bits)
