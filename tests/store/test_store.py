"""Tensor files, journal, manifest and store: what is written is what is read, or an error."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from make.dumps import EXPECTED, write_dump
from make.rows import random_sample

from hslib.dataset import Sample
from hslib.errors import JobError, StoreError
from hslib.files import Lock, TensorFileError, header_bytes, open_tensors
from hslib.server.dumps import DumpDir
from hslib.server.validate import validate
from hslib.store import Entry, Manifest, Store, StoreWriter, combine, read_journal
from hslib.store.journal import Journal, journal_name
from hslib.store.manifest import differing_fields


def manifest(**changes: Any) -> Manifest:
    facts = {
        "boundaries": (1, 3, 5),
        "hidden_size": 16,
        "num_layers": 6,
        "vocab_size": 512,
        "model_class": "LlamaForCausalLM",
        "model_path": "model",
        "model_config_hash": "c0",
        "tokenizer_digest": "",
        "dataset_path": "rows.jsonl",
        "dataset_digest": "d0",
        "sglang_version": "0.5.23",
        "plugin_version": "1.0.0",
        "server": {"tp_size": 1},
    }
    return Manifest(**{**facts, **changes})


def store_samples(path: Path, samples: list[Sample], **writer: int) -> list[torch.Tensor]:
    """Store these samples with made-up states, through the real gate; returns the states."""
    dumps, states = DumpDir(path.parent / "dumps"), []
    with StoreWriter(path, manifest(), **writer) as writing:
        for sample in samples:
            states.append(write_dump(dumps.root, "d", sample))
            dump = dumps.load("d")
            writing.put(sample, dump, validate(dump, sample, EXPECTED), 1, 0.01)
    return states


# --- tensor files -------------------------------------------------------------------------


def test_a_written_header_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    ids, mask = np.arange(3, dtype="<i8"), np.array([1, 0, 1], "u1")
    states = torch.randn(3, 2, 8).to(torch.bfloat16)
    header = header_bytes(
        {
            "hidden_states": ("BF16", (3, 2, 8)),
            "input_ids": ("I64", (3,)),
            "loss_mask": ("U8", (3,)),
        },
        {"format": "x"},
    )
    assert len(header) % 8 == 0
    path = tmp_path / "x.safetensors"
    path.write_bytes(
        header + states.view(torch.int16).numpy().tobytes() + ids.tobytes() + mask.tobytes()
    )
    loaded = safetensors.torch.load_file(path)
    assert torch.equal(loaded["hidden_states"], states)
    assert loaded["input_ids"].tolist() == [0, 1, 2]
    assert loaded["loss_mask"].tolist() == [1, 0, 1]


def test_a_file_of_the_safetensors_library_is_read_here(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(4, 3).to(torch.bfloat16), "b": torch.arange(5)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", {"k": "v"})
    file = open_tensors(tmp_path / "x.safetensors")
    assert file.metadata == {"k": "v"}
    assert torch.equal(torch.from_numpy(file.arrays["a"].copy()).view(torch.bfloat16), tensors["a"])
    assert file.arrays["b"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_cut_file_is_an_error_and_never_short_data(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.arange(50)}, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TensorFileError):
        open_tensors(path)


def test_bytes_behind_the_tensors_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.arange(50)}, path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(TensorFileError, match="longer"):
        open_tensors(path)


# --- journal ------------------------------------------------------------------------------


def test_entries_come_back_as_they_were_appended(tmp_path: Path) -> None:
    entries = [Entry(index=i, id=f"r{i}", status="ok", layers=[{"absmax": 1.5}]) for i in range(3)]
    journal = Journal(tmp_path / "journal.jsonl")
    for entry in entries:
        journal.append(entry)
    journal.close()
    assert list(read_journal(tmp_path / "journal.jsonl")) == entries


def test_many_threads_append_whole_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")

    def work(first: int) -> None:
        for index in range(first, first + 50):
            journal.append(Entry(index=index, id="x" * 300, status="ok"))

    threads = [threading.Thread(target=work, args=(i * 50,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert sorted(e.index for e in read_journal(tmp_path / "journal.jsonl")) == list(range(400))


def test_a_torn_last_line_is_dropped_on_reading_and_cut_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(Entry(index=0, id="a", status="ok"))
    journal.close()
    with path.open("ab") as handle:
        handle.write(b'{"index": 1, "id"')
    assert [e.index for e in read_journal(path)] == [0]
    journal = Journal(path)
    journal.append(Entry(index=2, id="c", status="ok"))
    journal.close()
    assert [e.index for e in read_journal(path)] == [0, 2]


def test_a_broken_line_inside_the_journal_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    good = b'{"index": 0, "id": "a", "status": "ok"}\n'
    path.write_bytes(good + b"{oops\n" + good)
    with pytest.raises(StoreError, match="line 2"):
        list(read_journal(path))


def test_the_meaning_of_lines_does_not_depend_on_their_order() -> None:
    ok = Entry(index=5, id="a", status="ok", finished_at=1.0, entry="e1")
    revoked = Entry(index=5, id="a", status="revoked", revokes="e1", finished_at=2.0)
    again = Entry(index=5, id="a", status="ok", finished_at=3.0, entry="e2")
    failed = Entry(index=5, id="a", status="failed", finished_at=9.0)
    assert combine([ok, revoked]).stored == combine([revoked, ok]).stored == {}
    for lines in ([ok, revoked, again, failed], [failed, again, revoked, ok]):
        state = combine(lines)
        assert state.stored == {5: again}
        assert state.failed == {}
    assert combine([ok, revoked, failed]).failed == {5: failed}


def test_journal_names_tell_shards_apart() -> None:
    assert journal_name(0, 1) == "journal.jsonl"
    assert journal_name(3, 8) == "journal-00003-of-00008.jsonl"


# --- manifest -----------------------------------------------------------------------------


def test_a_resume_with_other_layers_or_model_names_the_fields() -> None:
    changed = manifest(boundaries=(2, 3, 5), model_config_hash="c1", dataset_digest="d1")
    assert differing_fields(manifest(), changed) == {
        "boundaries": ((1, 3, 5), (2, 3, 5)),
        "model_config_hash": ("c0", "c1"),
    }


def test_a_store_is_not_resumed_with_another_manifest(tmp_path: Path) -> None:
    StoreWriter(tmp_path / "store", manifest()).close()
    with pytest.raises(StoreError, match="boundaries differ") as caught:
        StoreWriter(tmp_path / "store", manifest(boundaries=(2, 3, 5)))
    assert caught.value.fields["differing"] == {"boundaries": ((1, 3, 5), (2, 3, 5))}
    StoreWriter(tmp_path / "store", manifest()).close()  # the refusal left no lock behind


def test_opening_what_is_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no manifest"):
        Store(tmp_path)


# --- store --------------------------------------------------------------------------------


def test_samples_come_back_bit_by_bit_in_index_order(tmp_path: Path) -> None:
    samples = [random_sample(i, n) for i, n in ((1003, 7), (2, 1), (40, 30))]
    states = store_samples(tmp_path / "store", samples)
    store = Store(tmp_path / "store")
    assert [stored.index for stored in store] == [2, 40, 1003]
    for sample, state in zip(samples, states, strict=True):
        stored = store[sample.index]
        assert torch.equal(stored.hidden_states, state)
        assert torch.equal(stored.layer(3), state[:, 1])
        assert torch.equal(stored.final, state[:, -1])
        assert stored.input_ids.dtype == torch.int64
        assert stored.input_ids.tolist() == sample.input_ids.tolist()
        assert stored.loss_mask.tolist() == sample.loss_mask.tolist()
        assert stored.entry.id == sample.id
    assert store[1003].entry.file == "samples/00001/00001003.safetensors"
    assert store.verify(deep=True).clean


def test_the_safetensors_library_reads_a_sample(tmp_path: Path) -> None:
    sample = random_sample(0, 5)
    (states,) = store_samples(tmp_path / "store", [sample])
    path = tmp_path / "store/samples/00000/00000000.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("hidden_states"), states)
        facts = file.metadata()
    assert facts["digest"] == sample.digest
    assert json.loads(facts["boundaries"]) == [1, 3, 5]


def test_asking_for_a_layer_that_is_not_stored_names_those_that_are(tmp_path: Path) -> None:
    store_samples(tmp_path / "store", [random_sample(0, 3)])
    with pytest.raises(StoreError, match=r"\[1, 3, 5\]"):
        Store(tmp_path / "store")[0].layer(2)


def test_a_file_without_a_journal_line_is_not_in_the_store(tmp_path: Path) -> None:
    store_samples(tmp_path / "store", [random_sample(0, 3), random_sample(1, 3)])
    journal = tmp_path / "store/journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    store = Store(tmp_path / "store")
    assert list(store.entries) == [0]
    with pytest.raises(StoreError, match="not extracted"):
        store[1]


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["header", "states", "ids", "mask"])
def test_a_flipped_bit_anywhere_is_found_by_deep_verification(tmp_path: Path, where: str) -> None:
    store_samples(tmp_path / "store", [random_sample(0, 6), random_sample(1, 6)])
    path = tmp_path / "store/samples/00000/00000001.safetensors"
    size = path.stat().st_size
    offset = {"header": 60, "states": size - 54 - 100, "ids": size - 54, "mask": size - 1}[where]
    _flip(path, offset)
    store = Store(tmp_path / "store")
    assert store.verify().clean, "size alone can't see it"
    report = store.verify(deep=True)
    assert [fault.index for fault in report.faults] == [1]


def test_a_header_that_was_padded_otherwise_is_the_same_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hslib.files.safetensor.LARGE", 0)  # every file's tensors begin at a page
        store_samples(tmp_path / "store", [random_sample(0, 5)])
    store = Store(tmp_path / "store")
    assert store.entries[0].size_bytes > 4096
    assert store.verify(deep=True).clean
    path = store.path / store.entries[0].file
    data = bytearray(path.read_bytes())
    data[4000] ^= 1  # in the padding
    path.write_bytes(data)
    assert [fault.check for fault in store.verify(deep=True).faults] == ["readable"]


def test_missing_and_cut_files_are_found_by_size(tmp_path: Path) -> None:
    store_samples(tmp_path / "store", [random_sample(i, 6) for i in range(3)])
    folder = tmp_path / "store/samples/00000"
    (folder / "00000000.safetensors").unlink()
    os.truncate(folder / "00000002.safetensors", 100)
    report = Store(tmp_path / "store").verify()
    assert {f.index: f.check for f in report.faults} == {0: "exists", 2: "size"}


def test_repair_quarantines_what_is_bad_and_the_rest_stays(tmp_path: Path) -> None:
    samples = [random_sample(i, 6) for i in range(3)]
    store_samples(tmp_path / "store", samples)
    _flip(tmp_path / "store/samples/00000/00000001.safetensors", 400)
    store = Store(tmp_path / "store")
    assert store.repair(store.verify(deep=True)) == [1]
    assert list(store.entries) == [0, 2]
    assert len(list((tmp_path / "store/quarantine").iterdir())) == 1
    store_samples(tmp_path / "store", [samples[1]])  # the redone sample counts again
    assert list(Store(tmp_path / "store").entries) == [0, 1, 2]


def test_shards_have_their_own_journals_and_one_store_reads_them_all(tmp_path: Path) -> None:
    for shard in range(3):
        samples = [random_sample(i, 4) for i in range(shard, 9, 3)]
        store_samples(tmp_path / "store", samples, shard_index=shard, num_shards=3)
    store = Store(tmp_path / "store")
    assert list(store.entries) == list(range(9))
    assert len(list((tmp_path / "store").glob("journal-*-of-00003.jsonl"))) == 3


def test_a_second_writer_of_a_shard_is_refused_with_its_owner(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path / "store", manifest()),
        pytest.raises(JobError, match="in use by another job") as caught,
    ):
        StoreWriter(tmp_path / "store", manifest())
    assert json.loads(caught.value.fields["owner"])["pid"] == os.getpid()


def test_a_lock_that_is_not_held_says_so(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock", "it")
    with pytest.raises(JobError, match="is not held"):
        lock.require_held()
    with lock:
        lock.require_held()


def test_writers_that_split_the_rows_differently_are_refused(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path / "store", manifest(), 0, 2),
        StoreWriter(tmp_path / "store", manifest(), 1, 2),
        pytest.raises(JobError, match="num_shards"),
    ):
        StoreWriter(tmp_path / "store", manifest(), 2, 3)


def test_a_read_only_store_is_an_error_and_nothing_is_committed(tmp_path: Path) -> None:
    sample = random_sample(0, 3)
    dumps = DumpDir(tmp_path / "dumps")
    write_dump(dumps.root, "d", sample)
    with StoreWriter(tmp_path / "store", manifest()) as writer:
        (tmp_path / "store/samples").write_text("a file where a directory must be")
        dump = dumps.load("d")
        with pytest.raises(OSError, match="samples"):
            writer.put(sample, dump, validate(dump, sample, EXPECTED), 1, 0.0)
    assert len(Store(tmp_path / "store")) == 0


def test_a_file_that_cannot_be_opened_is_not_taken_for_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files says nothing of a sample: no fault, no quarantine."""
    store_samples(tmp_path / "store", [random_sample(0, 3)])

    def too_many(_path: Path) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("hslib.store.directory.open_tensors", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        Store(tmp_path / "store").verify(deep=True)


def test_repair_leaves_alone_what_was_extracted_again_since_the_report(tmp_path: Path) -> None:
    sample = random_sample(0, 6)
    store_samples(tmp_path / "store", [sample])
    path = tmp_path / "store/samples/00000/00000000.safetensors"
    _flip(path, 400)
    old = Store(tmp_path / "store")
    report = old.verify(deep=True)
    Store(tmp_path / "store").repair(report)
    store_samples(tmp_path / "store", [sample])
    assert old.repair(report) == []
    assert Store(tmp_path / "store").verify(deep=True).clean
    assert list(Store(tmp_path / "store").entries) == [0]


def test_a_journal_that_failed_once_acknowledges_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the leader of a group commit nor its followers may be told that they are durable."""
    journal, results = Journal(tmp_path / "journal.jsonl"), {}
    (tmp_path / "d").mkdir()

    def fail(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hslib.store.journal.sync_directory", fail)

    def work(index: int) -> None:
        try:
            journal.append(Entry(index=index, id="x", status="ok", file="d/x"))
            results[index] = "durable"
        except StoreError:
            results[index] = "raised"

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results.values()) == {"raised"}
    assert list(read_journal(tmp_path / "journal.jsonl")) == []


def test_a_closed_journal_writes_into_nobody_elses_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.close()
    with (tmp_path / "other").open("wb"), pytest.raises(StoreError, match="closed"):
        journal.append(Entry(index=0, id="x", status="ok"))
    assert (tmp_path / "other").read_bytes() == b""


def test_the_latest_of_several_live_lines_counts() -> None:
    early = Entry(index=0, id="a", status="ok", finished_at=1.0)
    late = Entry(index=0, id="a", status="ok", finished_at=2.0)
    assert combine([early, late]).stored == combine([late, early]).stored == {0: late}


def test_what_a_killed_writer_left_half_written_is_swept(tmp_path: Path) -> None:
    store_samples(tmp_path / "store", [random_sample(0, 3)])
    leftover = tmp_path / "store/samples/00000/.00000007.safetensors.0-of-1.tmp"
    leftover.write_bytes(b"x")
    other_shards = leftover.with_name(".00000008.safetensors.1-of-2.tmp")
    other_shards.write_bytes(b"x")
    StoreWriter(tmp_path / "store", manifest()).close()
    assert not leftover.exists()
    assert other_shards.exists(), "another shard's writer may be at it"


def test_tokens_are_those_of_the_samples_and_a_cut_file_is_told(tmp_path: Path) -> None:
    samples = [random_sample(i, 4 + i) for i in range(3)]
    store_samples(tmp_path / "store", samples)
    store = Store(tmp_path / "store")
    found = [(t.input_ids.tolist(), t.loss_mask.tolist()) for t in store.tokens()]
    assert found == [(s.input_ids.tolist(), s.loss_mask.tolist()) for s in samples]
    (last,) = store.tokens([2])
    assert last.input_ids.dtype == torch.int64
    os.truncate(store.path / store.entries[2].file, store.entries[2].size_bytes - 1)
    with pytest.raises(StoreError, match="sample 2 is not sound: it is cut short"):
        list(store.tokens())
