"""A store in a directory: what :mod:`test_contract` can't say of every place."""

import os
import re
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest
from make.dumps import EXPECTED, write_dump
from make.rows import random_sample
from make.stores import manifest, put, store_samples

from hslib.__main__ import main
from hslib.dataset import Sample
from hslib.errors import JobError, StoreError
from hslib.server.dumps import Dump, DumpDir
from hslib.server.validate import validate
from hslib.store import Store, StoreWriter


def test_a_header_that_was_padded_otherwise_is_the_same_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hslib.files.safetensor.LARGE", 0)  # every file's tensors begin at a page
        store_samples(tmp_path / "store", tmp_path / "dumps", [random_sample(0, 5)])
    store = Store(tmp_path / "store")
    assert store.entries[0].size_bytes > 4096
    assert store.verify(deep=True).clean
    path = store.path / store.entries[0].file
    data = bytearray(path.read_bytes())
    data[4000] ^= 1  # in the padding
    path.write_bytes(data)
    assert [fault.check for fault in store.verify(deep=True).faults] == ["readable"]


def test_a_read_only_store_is_an_error_and_nothing_is_committed(tmp_path: Path) -> None:
    sample = random_sample(0, 3)
    dumps = DumpDir(tmp_path / "dumps")
    write_dump(dumps.root, "d", sample)
    with StoreWriter(tmp_path / "store", manifest()) as writer:
        (tmp_path / "store/samples").write_text("a file where a directory must be")
        dump = dumps.load("d")
        with pytest.raises(StoreError, match="can't be written: Not a directory") as caught:
            writer.put(sample, *dump.captured(), validate(dump, sample, EXPECTED), 1, 0.0)
    assert "samples" in caught.value.fields["path"]
    assert len(Store(tmp_path / "store")) == 0


def test_the_command_that_an_unsound_store_names_repairs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a store"
    store_samples(place, tmp_path / "dumps", [random_sample(0, 3), random_sample(1, 4)])
    os.truncate(place / Store(place).entries[1].file, 100)
    report = Store(place).verify()
    with pytest.raises(StoreError, match="1 of 2 stored samples are not sound") as caught:
        report.require_clean()
    named = re.search(r"`python -m hslib (verify .* --repair)`", report.sentence())
    assert named
    assert f"`python -m hslib {named[1]}`" in caught.value.fix
    with pytest.raises(StoreError, match="sample 1 is not sound") as opened:
        _ = Store(place)[1]
    assert named[1] in opened.value.fix
    assert main(shlex.split(named[1])) == 1, "it was not sound"
    assert "the next extraction takes these rows up again" in capsys.readouterr().out
    Store(place).verify(deep=True).require_clean()
    assert list(Store(place).entries) == [0]


def test_a_file_that_cannot_be_opened_is_not_taken_for_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files says nothing of a sample: no fault, no quarantine."""
    store_samples(tmp_path / "store", tmp_path / "dumps", [random_sample(0, 3)])

    def too_many(_path: Path) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("hslib.store.directory.open_tensors", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        Store(tmp_path / "store").verify(deep=True)


def test_what_a_killed_writer_left_half_written_is_swept(tmp_path: Path) -> None:
    store_samples(tmp_path / "store", tmp_path / "dumps", [random_sample(0, 3)])
    leftover = tmp_path / "store/samples/00000/.00000007.safetensors.0-of-1.tmp"
    leftover.write_bytes(b"x")
    other_shards = leftover.with_name(".00000008.safetensors.1-of-2.tmp")
    other_shards.write_bytes(b"x")
    StoreWriter(tmp_path / "store", manifest()).close()
    assert not leftover.exists()
    assert other_shards.exists(), "another shard's writer may be at it"


def dumped(tmp_path: Path, sample: Sample) -> Dump:
    root = tmp_path / "dumps"
    name = f"d{sample.digest[:8]}"
    write_dump(root, name, sample)
    return DumpDir(root).load(name)


def test_a_thread_that_outlives_its_writer_writes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a second interrupt: the next job has stored the row by the time it goes on."""
    held, go_on = threading.Event(), threading.Event()
    opened = os.open
    old, new = random_sample(0, 9, seed=1), random_sample(0, 9, seed=2)
    refused: list[str] = []

    def late(path: Any, flags: int, *mode: int) -> int:
        if threading.current_thread().name == "left over" and str(path).endswith(".tmp"):
            held.set()
            go_on.wait(20)
        return opened(path, flags, *mode)

    def write() -> None:
        try:
            put(first, old, dumped(tmp_path, old))
        except JobError as error:
            refused.append(error.message)

    first = StoreWriter(tmp_path / "store", manifest())
    left_over = threading.Thread(target=write, name="left over")
    with monkeypatch.context() as patch:
        patch.setattr("hslib.files.write.os.open", late)
        left_over.start()
        assert held.wait(20)
        first.close()
        with StoreWriter(tmp_path / "store", manifest()) as second:
            put(second, new, dumped(tmp_path, new))
        go_on.set()
        left_over.join(20)
    assert refused == ["the store was closed before the sample was stored"]
    store = Store(tmp_path / "store")
    assert store.verify(deep=True).clean
    assert store[0].input_ids.tolist() == new.input_ids.tolist()
    assert not list(store.path.rglob("*.tmp"))
