"""A file of lines that only grows; what a killed writer left of its last line is cut off."""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from hslib.files.write import sync_directory


class AppendFile:
    """Opens ``path`` for one writer, makes it where it is not there, cuts a torn last line.

    Raises:
        OSError: it can't be opened or repaired.
    """

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _cut_torn_line(self._fd)
            if is_new:
                sync_directory(path.parent)
        except OSError:
            os.close(self._fd)
            raise

    def append(self, lines: Iterable[bytes]) -> None:
        """Write whole lines durably, all of them or none.

        Raises:
            OSError: none of them is in the file.
        """
        end = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            view = memoryview(b"".join(lines))
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, end)  # never leave a torn line in the middle
            raise

    def close(self) -> None:
        """Also forgets the descriptor, whose number may soon be another file's."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _cut_torn_line(fd: int) -> None:
    """Cut off an unfinished last line."""
    size = os.lseek(fd, 0, os.SEEK_END)
    if not size:
        return
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1
    if end != size:
        os.ftruncate(fd, end)
        os.fsync(fd)
