"""Files written durably: temporary name, fsync, rename; large parts past the page cache."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

PAGE, LARGE = 4096, 1 << 20  # tensors of 1 MB and more begin at a page


def write_file(
    target: Path,
    parts: Iterable[bytes | memoryview],
    suffix: str,
    rename: Callable[[Path, Path], object] = Path.rename,
) -> None:
    """Write ``parts`` to ``.{name}{suffix}`` beside ``target``, fsync, rename.

    Args:
        rename: what makes the file appear, or raises.

    Raises:
        OSError: with the temporary file removed; so it is when ``rename`` raises.
    """
    temporary = target.with_name(f".{target.name}{suffix}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = os.open(temporary, flags, 0o644)
    except FileNotFoundError:  # the first file of its folder
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(temporary, flags, 0o644)
    try:
        try:
            offset = 0
            for part in parts:
                done = write_direct(temporary, part, offset)
                view = memoryview(part)[done:]
                offset += done
                while view:
                    count = os.pwrite(fd, view, offset)
                    view, offset = view[count:], offset + count
            os.fsync(fd)
        finally:
            os.close(fd)
        rename(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_direct(path: Path, part: bytes | memoryview, offset: int) -> int:
    """Write a large part's whole pages past the page cache; returns the bytes written.

    A dump's pages then need no second copy in memory, and evict no other pages from the cache. The
    caller writes the rest: all of a part that is small, not aligned, or on a file system without
    direct writes (returns 0), and what follows an error.
    """
    size = len(part) // PAGE * PAGE
    if size < LARGE or offset % PAGE or np.frombuffer(part, np.uint8).ctypes.data % PAGE:
        return 0
    view, done = memoryview(part)[:size], 0
    try:
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return 0
    try:
        while done < size and done % PAGE == 0:
            done += os.pwrite(fd, view[done:], offset + done)
    except OSError:
        return done // PAGE * PAGE
    finally:
        os.close(fd)
    return done


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` durably, by rename within its directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
