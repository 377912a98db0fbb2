"""Files on a local or mounted file system: written durably, locked, mapped, explained."""

from hslib.files.append import AppendFile
from hslib.files.explain import NO_LOCKS, explained
from hslib.files.lock import Lock
from hslib.files.safetensor import (
    TensorFile,
    TensorFileError,
    header_bytes,
    open_tensors,
    parse_tensors,
)
from hslib.files.write import LARGE, PAGE, sync_directory, write_atomically, write_file

__all__ = [
    "AppendFile",
    "explained",
    "header_bytes",
    "LARGE",
    "Lock",
    "NO_LOCKS",
    "open_tensors",
    "PAGE",
    "parse_tensors",
    "sync_directory",
    "TensorFile",
    "TensorFileError",
    "write_atomically",
    "write_file",
]
