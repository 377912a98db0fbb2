"""A large sample goes to the disk past the page cache, and arrives whole whatever refuses that."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hslib.files import LARGE, PAGE, header_bytes, write_file
from hslib.files.write import write_direct

SIZE = LARGE + 3 * PAGE + 100


@pytest.fixture
def parts() -> list[bytes | memoryview]:
    """A header of a page, large states that begin at a page, and a tail."""
    header = header_bytes({"hidden_states": ("U8", (SIZE,)), "input_ids": ("U8", (9,))}, {})
    memory = mmap.mmap(-1, SIZE)
    memory.write(np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes())
    return [header, memoryview(memory), b"tail of 9"]


def written(path: Path, parts: Sequence[bytes | memoryview]) -> bool:
    write_file(path, parts, ".tmp")
    return path.read_bytes() == b"".join(parts) and not list(path.parent.glob(".*tmp"))


def test_large_states_begin_at_a_page_and_small_ones_take_no_more_room() -> None:
    assert len(header_bytes({"a": ("U8", (LARGE,))}, {})) == PAGE
    assert len(header_bytes({"a": ("U8", (LARGE - 1,))}, {})) < 100


def test_a_large_part_is_written_directly_but_for_its_last_part_page(
    tmp_path: Path, parts: list[bytes | memoryview]
) -> None:
    (tmp_path / "probe").touch()
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct writes")
    assert write_direct(tmp_path / "probe", parts[1], PAGE) == SIZE // PAGE * PAGE
    assert written(tmp_path / "file", parts)


@pytest.mark.parametrize(("part", "offset"), [(0, 0), (2, 0), (1, PAGE + 8)])
def test_what_is_small_or_not_aligned_is_not_written_directly(
    tmp_path: Path, parts: list[bytes | memoryview], part: int, offset: int
) -> None:
    (tmp_path / "probe").touch()
    assert write_direct(tmp_path / "probe", parts[part], offset) == 0
    assert (tmp_path / "probe").stat().st_size == 0


def test_memory_that_is_not_aligned_is_written_all_the_same(
    tmp_path: Path, parts: list[bytes | memoryview]
) -> None:
    assert written(tmp_path / "file", [parts[0], memoryview(b"x" + bytes(parts[1]))[1:], parts[2]])


@pytest.mark.parametrize("refusal", ["open", "pwrite"])
def test_a_file_system_without_direct_writes_is_written_to_as_usual(
    tmp_path: Path,
    parts: list[bytes | memoryview],
    monkeypatch: pytest.MonkeyPatch,
    refusal: str,
) -> None:
    refuse_direct(monkeypatch, refusal, after=0)
    assert written(tmp_path / "file", parts)


def test_a_direct_write_that_ends_half_way_is_finished_as_usual(
    tmp_path: Path, parts: list[bytes | memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch, "pwrite", after=2 * PAGE)
    assert written(tmp_path / "file", parts)


def test_a_full_disk_is_an_error_and_leaves_no_file(
    tmp_path: Path, parts: list[bytes | memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", parts, ".tmp")
    assert list(tmp_path.iterdir()) == []


def refuse_direct(monkeypatch: pytest.MonkeyPatch, what: str, after: int) -> None:
    """Make direct opens fail, or direct writes once ``after`` bytes are written."""
    direct: set[int] = set()
    really: dict[str, Callable[..., int]] = {"open": os.open, "pwrite": os.pwrite}

    def opens(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT and what == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        fd = really["open"](path, flags & ~os.O_DIRECT, *mode)
        if flags & os.O_DIRECT:
            direct.add(fd)
        else:
            direct.discard(fd)
        return fd

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if fd in direct and what == "pwrite":
            if offset >= PAGE + after:
                raise OSError(errno.EINVAL, "Invalid argument")
            data = data[:after]
        return really["pwrite"](fd, data, offset)

    monkeypatch.setattr(os, "open", opens)
    monkeypatch.setattr(os, "pwrite", pwrite)
