"""The dump directory: what the server wrote for a request.

A dump is a directory with a ``done`` marker. Only :func:`request_id` gives names a meaning. Knows
nothing of HTTP or of the store.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pydantic

from hslib.dataset import Sample
from hslib.errors import DumpError
from hslib.files import TensorFileError, open_tensors
from hslib.server.plugin_info import PluginInfo

_DUMP_FILES = ("done", "error.json", "meta.json", "hidden_states.safetensors")
DUMP_SHARE = 0.8  # of the free space that dumps may take; the rest is for small files and others
DUMP_TOKEN_BYTES, _DUMP_BYTES = 4, 512  # int32 id; header and small files, as the plugin counts


def dump_bytes(num_tokens: int, num_rows: int, state_bytes_per_token: int) -> int:
    """What dumps of these rows take in the dump directory; the plugin counts alike."""
    return num_tokens * (state_bytes_per_token + DUMP_TOKEN_BYTES) + num_rows * _DUMP_BYTES


class LayerNumbers(pydantic.BaseModel, frozen=True):
    """What the server measured of one state of a sample."""

    finite: bool
    absmax: float | None
    mean_l2: float | None
    zero_share: float
    witness: float | None = None  # largest error over the witnessed tokens; None: no witness


class DumpMeta(pydantic.BaseModel, frozen=True):
    """``meta.json`` of a dump."""

    rid: str
    num_tokens: int
    boundaries: tuple[int, ...]
    hidden_size: int
    dtype: str
    chunks: tuple[tuple[int, int], ...]  # (first row, rows) of each forward pass
    checksums: dict[str, str]  # tensor -> xxh3-64
    layers: tuple[LayerNumbers, ...]  # of each stored state in order
    stores_final: bool = True
    witnessed_tokens: int = 0
    pid: int
    plugin_version: str
    sglang_version: str


@dataclass(frozen=True, eq=False)
class Dump:
    """A complete dump, memory-mapped.

    ``input_ids`` int32 [T]; ``hidden_states`` uint16 [T, L, H], the bits of bfloat16,
    boundaries ascending and the final state last.
    """

    name: str
    path: Path
    input_ids: np.ndarray
    hidden_states: np.ndarray
    meta: DumpMeta
    mark: tuple[int, int] = (0, 0)  # of plugin.json when this was loaded

    def captured(self) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """What a store takes of it: the states, and what the server measured of each."""
        return self.hidden_states, [layer.model_dump() for layer in self.meta.layers]


def request_id(sample: Sample, attempt: int) -> str:
    """``hs-{index}-{num_tokens}-{16 hex of the digest}-{attempt}``; the plugin reads it.

    Args:
        attempt: a number that no earlier try at this sample had, in any run: SGLang refuses an
            id that is still in flight, such as a killed job's.
    """
    return f"hs-{sample.index}-{sample.num_tokens}-{sample.digest[:16]}-{attempt}"


class DumpDir:
    """Clear, scan, read and remove dumps below one directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def names(self, prefix: str = "") -> list[str]:
        """Directories that hold only a dump's files, sorted; not hidden ones, which are unfinished.

        Anything else in the dump directory is not this kit's and is ignored.
        """
        try:
            found = [e.name for e in os.scandir(self.root) if e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        wanted = (name for name in found if name.startswith(prefix) and name[0] != ".")
        return sorted(name for name in wanted if self._is_dump(name))

    def _is_dump(self, name: str) -> bool:
        try:
            return {entry.name for entry in os.scandir(self.root / name)} <= set(_DUMP_FILES)
        except FileNotFoundError:  # removed meanwhile
            return False

    def clear(self, names: Iterable[str]) -> None:
        for name in names:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove one dump, ``done`` first: a half-removed dump is never complete."""
        path = self._inside(name)
        if path.is_symlink() or not path.is_dir():
            return
        for part in _DUMP_FILES:
            (path / part).unlink(missing_ok=True)
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # it holds more than a dump's files
            shutil.rmtree(path, ignore_errors=True)

    def is_complete(self, name: str) -> bool:
        return (self.root / name / "done").exists()

    def wait(self, name: str, timeout_s: float) -> None:
        """Return when the dump is complete.

        Raises:
            DumpError: the server's own ``error.json``, or nothing complete in time.
        """
        deadline, pause = time.monotonic() + timeout_s, 0.0005
        while not self.is_complete(name):
            self.raise_server_error(name)
            if not self.root.is_dir():
                raise DumpError("the dump directory is gone", check="done", path=str(self.root))
            if time.monotonic() > deadline:
                raise DumpError(
                    f"no complete dump within {timeout_s:g} s of the answer",
                    check="done",
                    path=str(self.root / name),
                    fix="see server.log; is the dump directory full, or another server's?",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def raise_server_error(self, name: str) -> None:
        """Raise :class:`DumpError` with the reason in ``error.json``, if there is one."""
        path = self.root / name / "error.json"
        try:
            reason = json.loads(path.read_text())["reason"]
        except FileNotFoundError:
            return
        raise DumpError(
            f"the server could not dump it: {reason}", check="error.json", path=str(path)
        )

    def load(self, name: str) -> Dump:
        """Map a complete dump.

        Raises:
            DumpError: unreadable or cut short.
        """
        path = self.root / name
        try:
            meta = DumpMeta.model_validate_json((path / "meta.json").read_bytes())
            file = open_tensors(path / "hidden_states.safetensors")
            arrays = file.arrays
            return Dump(
                name, path, arrays["input_ids"], arrays["hidden_states"], meta, self.plugin_mark()
            )
        except (TensorFileError, pydantic.ValidationError, FileNotFoundError, KeyError) as error:
            raise DumpError(
                f"unreadable dump: {error}", check="readable", path=str(path)
            ) from error

    def plugin(self) -> PluginInfo | None:
        """``plugin.json``, or None when no plugin has written it."""
        try:
            return PluginInfo.model_validate_json((self.root / "plugin.json").read_bytes())
        except FileNotFoundError:
            return None

    def plugin_mark(self) -> tuple[int, int]:
        """A value that changes with ``plugin.json``, so with every start of a server; cheap."""
        try:
            found = os.stat(self.root / "plugin.json")
        except FileNotFoundError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def is_served(self) -> bool:
        """Whether the server that wrote ``plugin.json`` may live; it may be none of a job's."""
        plugin = self.plugin()
        try:
            return plugin is not None and _lives(plugin.pid)
        except psutil.NoSuchProcess:
            return False

    def sweep(self) -> None:
        """Remove dumps that a server had not finished when it ended: ``.tmp-{pid}-{name}``."""
        for unfinished in self.root.glob(".tmp-*"):
            pid = unfinished.name.split("-")[1]
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(unfinished, ignore_errors=True)

    def discard(self) -> int:
        """Remove the directory of a server that has ended, if only the kit's files are in it.

        Returns:
            How many dumps there were.
        """
        names = self.names()
        self.clear(names)
        self.sweep()
        for small in (self.root / ".lock", *self.root.glob("plugin*.json")):
            small.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()
        return len(names)

    def free_bytes(self) -> int:
        """Bytes that the directory's file system has free."""
        return shutil.disk_usage(self.root).free

    def _inside(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
            raise DumpError(f"{name!r} is not a dump's name", path=str(self.root))
        return self.root / name


def _lives(pid: int) -> bool:
    return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
