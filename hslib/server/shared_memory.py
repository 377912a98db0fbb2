"""Shared memory of a server's processes: which files in /dev/shm are theirs, and their removal.

SGLang unlinks none of them: it kills its own children, Python's resource tracker among them, and
leaves ``sglang_loads_*``, ``sgl_shm_*`` and ``sem.mp-*`` behind even when it is asked to end.
"""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import psutil

_ROOT = Path("/dev/shm")


def mapped_by(pids: Iterable[int]) -> set[str]:
    """Names of the files directly in /dev/shm that these processes have mapped or open."""
    paths: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            paths.update(line.split(maxsplit=5)[5] for line in lines if str(_ROOT) in line)
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    paths.add(str(descriptor.readlink()))
    found = (Path(path) for path in paths)
    return {path.name for path in found if path.parent == _ROOT and path.exists()}


def remove(names: Iterable[str]) -> list[str]:
    """Unlink those that are files of this user and that no live process has; returns them."""
    mine = {name for name in names if _is_mine(_ROOT / name)}
    if not mine:
        return []
    removed = sorted(mine - mapped_by(psutil.pids()))
    for name in removed:
        (_ROOT / name).unlink(missing_ok=True)
    return removed


def _is_mine(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and path.parent == _ROOT
