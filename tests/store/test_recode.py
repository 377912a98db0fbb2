"""A store in another encoding: the same samples, the source untouched, resumable, verified."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes.bucket import Bucket
from make.rows import random_sample
from make.stores import failure, made_up_rows, manifest, one_dump, put, write_store
from make.waits import wait_until

from hslib.errors import EncodingError, StoreError
from hslib.store import CODECS, Store, StoreWriter, recode_store
from hslib.store import recode as recode_module
from hslib.terminal.app import main

LIMIT = 0.05


@pytest.fixture
def source(tmp_path: Path) -> Store:
    store = write_store(tmp_path / "store", made_up_rows(12))
    with StoreWriter(store.path, store.manifest) as writer:
        writer.record(failure(12))
    return Store(store.path)


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def states_of(store: Store) -> list[torch.Tensor]:
    return [sample.hidden_states.view(torch.int16) for sample in store]


def all_equal(first: Store, second: Store) -> bool:
    pairs = zip(states_of(first), states_of(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# --- what is copied -----------------------------------------------------------------------


@pytest.mark.parametrize("encoding", CODECS)
def test_a_copy_has_the_samples_and_failures_and_the_source_stays_as_it_is(
    source: Store, tmp_path: Path, encoding: str
) -> None:
    before = bytes_of(Path(source.path))
    report = recode_store(source, tmp_path / "out", encoding, LIMIT)
    copy = Store(tmp_path / "out")
    assert bytes_of(Path(source.path)) == before
    assert copy.verify(deep=True).clean
    assert copy.manifest.encoding == encoding
    assert {e.encoding for e in copy.entries.values()} == {encoding}
    assert copy.journal_state.failed == source.journal_state.failed
    assert all_equal(source, copy) == (not CODECS[encoding].is_lossy)
    for mine, theirs in zip(copy, source, strict=True):
        assert torch.equal(mine.input_ids, theirs.input_ids)
        assert torch.equal(mine.loss_mask, theirs.loss_mask)
        assert mine.entry.finished_at == theirs.entry.finished_at
        if not CODECS[encoding].is_lossy:
            assert mine.entry.checksum == theirs.entry.checksum
    assert (report.samples, report.copied) == (12, 12)
    assert encoding in report.sentence()


def test_what_was_lost_stays_told_in_a_copy_that_loses_nothing_more(
    source: Store, tmp_path: Path
) -> None:
    recode_store(source, tmp_path / "fp8", "fp8", LIMIT)
    lossy = Store(tmp_path / "fp8")
    recode_store(lossy, tmp_path / "plain", "plain", LIMIT)
    copy = Store(tmp_path / "plain")
    assert all_equal(lossy, copy)
    assert copy.encoding_errors() == lossy.encoding_errors()
    assert "differs by at most" in copy.encoding_sentence()


def test_from_a_directory_into_a_bucket_and_back(
    source: Store, bucket: Bucket, tmp_path: Path
) -> None:
    recode_store(source, bucket.url, "lossless", LIMIT)
    recode_store(Store(bucket.url), tmp_path / "back", "plain", LIMIT)
    assert all_equal(source, Store(tmp_path / "back"))


# --- run again ----------------------------------------------------------------------------


def test_only_what_is_new_or_changed_is_copied_again(source: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    recode_store(source, out, "lossless", LIMIT)
    first = bytes_of(out)
    assert recode_store(source, out, "lossless", LIMIT).copied == 0
    assert bytes_of(out) == first
    with StoreWriter(source.path, source.manifest) as writer:
        writer.revoke(source.entries[3], "redone")
    rows = made_up_rows(14, seed=5)
    write_store(Path(source.path), [rows[3], rows[13]])
    changed = Store(source.path)
    assert recode_store(changed, out, "lossless", LIMIT).copied == 2
    assert all_equal(changed, Store(out))
    assert Store(out).verify(deep=True).clean


SCRIPT = """
import sys
from pathlib import Path
from hslib.store import Store, recode_store, recode
copy = recode._copy
def slowly(*arguments):
    import time; time.sleep(0.05); copy(*arguments)
recode._copy = slowly
recode_store(Store(sys.argv[1]), Path(sys.argv[2]), "lossless", 0.05, workers=2)
"""


def test_a_killed_copy_goes_on_where_it_was(source: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(source.path), str(out)])
    journal = out / "journal.jsonl"
    wait_until("some samples", lambda: journal.exists() and journal.read_bytes().count(b"\n") > 4)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = len(Store(out))
    assert Store(out).verify(deep=True).clean
    assert recode_store(source, out, "lossless", LIMIT).copied == 12 - there > 0
    assert all_equal(source, Store(out))
    assert not list(out.glob("samples/*/.*"))


# --- what is refused ----------------------------------------------------------------------


def test_what_can_not_be_copied_is_refused(source: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in place"):
        recode_store(source, Path(source.path), "lossless", LIMIT)
    with pytest.raises(EncodingError, match="loses more"):
        recode_store(source, tmp_path / "strict", "fp8", 1e-6)
    recode_store(source, tmp_path / "fp8", "fp8", LIMIT)
    with pytest.raises(StoreError, match="holds samples in fp8, lossless was asked for"):
        recode_store(source, tmp_path / "fp8", "lossless", LIMIT)
    with pytest.raises(StoreError, match="in fp8 already"):
        recode_store(Store(tmp_path / "fp8"), tmp_path / "again", "fp8-aux", LIMIT)
    other = tmp_path / "other"
    with StoreWriter(other, manifest()) as writer:
        sample = random_sample(0, 5)
        put(writer, sample, one_dump(tmp_path / "dumps", sample))
    with pytest.raises(StoreError, match="states of another kind"):
        recode_store(source, other, "lossless", LIMIT)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def test_an_unsound_sample_ends_the_copy_by_name(source: Store, tmp_path: Path) -> None:
    damage(Path(source.path) / source.entries[4].file)
    with pytest.raises(StoreError, match="sample 4 is not sound"):
        recode_store(source, tmp_path / "out", "lossless", LIMIT)
    assert Store(tmp_path / "out").verify(deep=True).clean


def test_what_does_not_come_back_from_the_disk_ends_the_copy(
    source: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = recode_module.check_file

    def after_damage(storage: object, entry: object, *rest: object, **options: object) -> object:
        damage(tmp_path / "out" / entry.file)
        return check(storage, entry, *rest, **options)

    monkeypatch.setattr(recode_module, "check_file", after_damage)
    with pytest.raises(StoreError, match="did not come back as it was written"):
        recode_store(source, tmp_path / "out", "lossless", LIMIT)


def test_a_disk_without_room_is_told_before(
    source: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hslib.store.directory.Directory.free_bytes", lambda _self: 1000)
    with pytest.raises(StoreError, match=r"takes about .* its disk has 1.00 kB free"):
        recode_store(source, tmp_path / "out", "lossless", LIMIT)


# --- in a terminal ------------------------------------------------------------------------


def test_the_command_says_what_was_saved(
    source: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["recode", str(source.path), str(tmp_path / "out"), "--encoding"]
    assert main([*command, "lossless"]) == 0
    assert "12 samples (12 copied now)" in capsys.readouterr().out
    assert main([*command, "zip"]) == 2
