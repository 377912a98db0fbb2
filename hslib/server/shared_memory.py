"""Shared memory of a server's processes: which files in /dev/shm are theirs, and their removal.

SGLang unlinks none of them: it kills its own children, Python's resource tracker among them, and
leaves ``sglang_loads_*``, ``sgl_shm_*`` and ``sem.mp-*`` behind even when it is asked to end.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_ROOT = Path("/dev/shm")
# of SGLang, Python's multiprocessing, NCCL and torch: never a file that a user has put there
_NAMES = ("sglang_", "sgl_", "sem.mp-", "psm_", "nccl-", "torch_", "wnsm_")


def mapped_by(pids: Iterable[int]) -> set[str]:
    """Names of the files directly in /dev/shm that these processes have mapped or open."""
    # by inode: glibc makes a semaphore under another name, which is what its maker's map says
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) > 5 and fields[5].startswith(f"{_ROOT}/"):
                    inodes.add(int(fields[4]))
            inodes.update(_open_files(pid))
    if not inodes:
        return set()
    files = (entry for entry in os.scandir(_ROOT) if entry.is_file(follow_symlinks=False))
    return {e.name for e in files if e.inode() in inodes and e.name.startswith(_NAMES)}


def _open_files(pid: int) -> Iterator[int]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith(f"{_ROOT}/"):
                yield descriptor.stat().st_ino


def remove(names: Iterable[str]) -> list[str]:
    """Unlink those that are files of this user and that no live process has; returns them."""
    mine = {name for name in names if name.startswith(_NAMES) and _is_mine(_ROOT / name)}
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
