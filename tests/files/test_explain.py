"""File systems that can't lock or sync: an error with path, file system and cure."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from make.dumps import BOUNDARIES
from make.stores import made_up_rows, manifest, write_store

from hslib.errors import HslibError, JobError, StoreError
from hslib.files import Lock
from hslib.files.explain import file_system_of
from hslib.store import Entry, StoreWriter
from hslib.store.journal import Journal

MANIFEST = manifest(boundaries=BOUNDARIES, hidden_size=64)
LINE = Entry(index=0, id="x", status="failed")


def raising(number: int, when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    really = os.fsync

    def call(fd: Any, *_arguments: Any) -> None:
        if when(fd):
            raise OSError(number, os.strerror(number))
        really(fd)

    return call


def is_directory(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def assert_is_explained(error: HslibError, path: Path, number: int, cure: str) -> None:
    assert os.strerror(number) in error.message
    assert error.fields["errno"] == number
    assert error.fields["path"] == str(path)
    assert error.fields["file_system"] == file_system_of(path) != "unknown"
    assert cure in error.fix
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_flock_is_named_with_how_to_mount_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(number))
    lock = Lock(tmp_path / ".lock", "the store")
    with pytest.raises(JobError, match="the store can't be locked") as caught:
        lock.acquire()
    assert_is_explained(caught.value, tmp_path / ".lock", number, "Lustre: -o flock")
    assert "owner" not in caught.value.fields, "nobody holds it"
    with pytest.raises(JobError, match="not held"):
        lock.require_held()


def test_a_lock_that_is_held_is_still_told_from_one_that_can_not_be(tmp_path: Path) -> None:
    with Lock(tmp_path / ".lock", "it"), pytest.raises(JobError, match="in use") as caught:
        Lock(tmp_path / ".lock", "it").acquire()
    assert f'"pid": {os.getpid()}' in caught.value.fields["owner"]


def test_a_store_on_a_file_system_without_flock_is_no_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leftover lock of another split must not make it look as if that job were at work."""
    with StoreWriter(tmp_path / "store", MANIFEST, 0, 2):
        pass
    really, calls = fcntl.flock, iter([False, True])

    def second(handle: Any, how: int) -> None:
        if next(calls):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        really(handle, how)

    monkeypatch.setattr(fcntl, "flock", second)
    with pytest.raises(JobError, match="can't be locked"):
        StoreWriter(tmp_path / "store", MANIFEST)


def test_a_lock_file_that_can_not_be_made_is_explained(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="can't be locked") as caught:
        Lock(tmp_path / "gone" / ".lock", "it").acquire()
    assert_is_explained(caught.value, tmp_path / "gone" / ".lock", errno.ENOENT, "removed")


def test_a_directory_that_can_not_be_synced_is_named_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    journal = Journal(tmp_path / "journal.jsonl")
    monkeypatch.setattr(os, "fsync", raising(errno.EINVAL, is_directory))
    line = Entry(index=0, id="x", status="ok", file="d/x")
    with pytest.raises(StoreError, match="new files can't be made durable") as caught:
        journal.append(line)
    assert_is_explained(caught.value, tmp_path / "d", errno.EINVAL, "another one")
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.ENOSPC, "free space"), (errno.EROFS, "for writing"), (errno.EIO, "dmesg")],
)
def test_a_journal_that_can_not_be_synced_is_named_and_has_no_torn_line(
    number: int, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    monkeypatch.setattr(os, "fsync", raising(number))
    with pytest.raises(StoreError, match="the journal can't be written") as caught:
        journal.append(LINE)
    assert_is_explained(caught.value, journal.path, number, cure)
    assert journal.path.read_bytes() == b""


def test_a_journal_whose_name_can_not_be_made_durable_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", raising(errno.EIO, is_directory))
    with pytest.raises(StoreError, match="the journal can't be opened"):
        Journal(tmp_path / "journal.jsonl")


def test_a_manifest_that_can_not_be_written_is_named_and_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(errno.ENOSPC))
        with pytest.raises(StoreError, match=r"manifest\.json can't be written"):
            StoreWriter(tmp_path / "store", MANIFEST)
    assert len(write_store(tmp_path / "store", made_up_rows(1))) == 1


def test_a_store_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="directory can't be made"):
        StoreWriter(tmp_path / "file" / "store", MANIFEST)


def test_the_deepest_and_latest_mount_is_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("/", "ext4"), ("/data", "nfs4"), ("/data/x", "autofs"), ("/data/x", "lustre")]
    parts = [SimpleNamespace(mountpoint=where, fstype=kind) for where, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: parts)
    assert file_system_of(Path("/data/x/store")) == "lustre, mounted at /data/x"
    assert file_system_of(Path("/data/xy/store")) == "nfs4, mounted at /data"
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [])
    assert file_system_of(Path("/data")) == "unknown"
