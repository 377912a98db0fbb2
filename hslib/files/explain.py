"""An operating system's error of a file as this kit's: on which file system, and the cure."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import psutil

from hslib.errors import HslibError

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system without them
_NO_LOCKS = (
    "this file system has no locks: mount it with them (Lustre: -o flock; NFS: without nolock, "
    "with lockd running), or use a directory on another one"
)
_FULL = "free space there, and run again to resume: what was stored before is whole, and stays"
_CURES = {
    **dict.fromkeys(NO_LOCKS, _NO_LOCKS),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "mount it for writing; a disk with errors turns read-only by itself (see dmesg)",
    errno.EACCES: "let this user write there, or use a directory of your own",
    errno.EPERM: "let this user write there, or use a directory of your own",
    errno.ENOENT: "the directory was removed meanwhile: keep it, and run again",
    errno.ENOTDIR: "a file is there where a directory is to be: move it away, and run again",
    errno.EINVAL: "this file system can't do it: use a directory on another one",
}
_OTHER = "look for that disk's or network's errors (dmesg), and run again to resume"


@contextlib.contextmanager
def explained(kind: type[HslibError], what: str, path: Path) -> Iterator[None]:
    """Raise any OSError from inside as ``kind``, with ``path, file_system, errno`` as fields.

    Args:
        what: what could not be done, as the message's first words.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"{what}: {error.strerror or error}",
            path=str(path),
            file_system=file_system_of(path),
            errno=error.errno,
            fix=_CURES.get(error.errno or 0, _OTHER),
        ) from error


def file_system_of(path: Path) -> str:
    """Such as ``"lustre, mounted at /scratch"``: the deepest mount point above a path.

    The path need not exist. "unknown" where the mounts can't be read.
    """
    above = {str(path.resolve()), *map(str, path.resolve().parents)}
    try:
        mounts = [part for part in psutil.disk_partitions(all=True) if part.mountpoint in above]
    except OSError:
        mounts = []
    if not mounts:
        return "unknown"
    # of two mounts at one path the later one hides the earlier
    last = max(reversed(mounts), key=lambda part: len(part.mountpoint))
    return f"{last.fstype}, mounted at {last.mountpoint}"
