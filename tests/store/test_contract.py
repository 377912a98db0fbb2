"""What a store promises wherever it lies and however it keeps states: each test runs in a
directory, in a bucket, and in a directory whose samples are compressed without loss."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from make.rows import random_sample
from make.stores import failure, manifest, one_dump, put, store_samples

from hslib.errors import JobError, StoreError
from hslib.store import Manifest, Store, StoreWriter, open_storage

SAMPLES = [random_sample(i, 5 + i) for i in range(4)]
StoreSamples = Callable[..., list[torch.Tensor]]


@pytest.fixture(params=["directory", "bucket", "lossless"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind != "bucket":
        return str(tmp_path / "store")
    request.getfixturevalue("hasty")
    return str(request.getfixturevalue("bucket").url)


@pytest.fixture
def store(kind: str, place: str, tmp_path: Path) -> StoreSamples:
    """Stores samples there; returns their states."""
    encoding = "lossless" if kind == "lossless" else "plain"
    return partial(store_samples, place, tmp_path / "dumps", encoding=encoding)


class Files:
    """The files of stored samples, to be spoilt."""

    def __init__(self, place: str) -> None:
        self._storage = open_storage(place)
        self._names = {index: entry.file for index, entry in Store(place).entries.items()}

    def read(self, index: int) -> bytes:
        return self._storage.read(self._names[index])

    def replace(self, index: int, data: bytes) -> None:
        self._storage.write(self._names[index], data)

    def delete(self, index: int) -> None:
        self._storage.move(self._names[index], f"deleted-{index}")

    def flip(self, index: int, offset: int) -> None:
        data = bytearray(self.read(index))
        data[offset] ^= 0x01
        self.replace(index, bytes(data))


# --- what is written is what is read ------------------------------------------------------


def test_samples_come_back_bit_by_bit_in_index_order(place: str, store: StoreSamples) -> None:
    samples = [random_sample(i, n) for i, n in ((1003, 7), (2, 1), (40, 30))]
    states = store(samples)
    found = Store(place)
    assert [stored.index for stored in found] == [2, 40, 1003]
    for sample, state in zip(samples, states, strict=True):
        stored = found[sample.index]
        assert torch.equal(stored.hidden_states, state)
        assert torch.equal(stored.layer(3), state[:, 1])
        assert torch.equal(stored.final, state[:, -1])
        assert stored.input_ids.dtype == torch.int64
        assert stored.input_ids.tolist() == sample.input_ids.tolist()
        assert stored.loss_mask.tolist() == sample.loss_mask.tolist()
        assert stored.entry.id == sample.id
    assert found[1003].entry.file.startswith("samples/00001/00001003")
    assert found.verify().clean
    assert found.verify(deep=True).clean


def test_the_safetensors_library_reads_a_sample(kind: str, place: str, store: StoreSamples) -> None:
    (states,) = store(SAMPLES[:1])
    data = Files(place).read(0)
    found = safetensors.torch.load(data)
    assert found["input_ids"].tolist() == SAMPLES[0].input_ids.tolist()
    if kind != "lossless":
        assert torch.equal(found["hidden_states"], states)
    facts = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert facts["digest"] == SAMPLES[0].digest
    assert json.loads(facts["boundaries"]) == [1, 3, 5]


def test_tokens_are_those_of_the_samples_and_a_cut_file_is_told(
    place: str, store: StoreSamples
) -> None:
    store(SAMPLES)
    found = [(t.input_ids.tolist(), t.loss_mask.tolist()) for t in Store(place).tokens()]
    assert found == [(s.input_ids.tolist(), s.loss_mask.tolist()) for s in SAMPLES]
    (last,) = Store(place).tokens([2])
    assert last.input_ids.dtype == torch.int64
    Files(place).replace(2, Files(place).read(2)[:-1])
    with pytest.raises(StoreError, match="sample 2 is not sound: it is cut short"):
        list(Store(place).tokens())


def test_asking_for_a_layer_that_is_not_stored_names_those_that_are(
    place: str, store: StoreSamples
) -> None:
    store(SAMPLES[:1])
    with pytest.raises(StoreError, match=r"\[1, 3, 5\]"):
        Store(place)[0].layer(2)


def test_opening_what_is_no_store_says_so(place: str) -> None:
    with pytest.raises(StoreError, match=r"no manifest|the store is missing"):
        Store(place)


# --- the journal line is the commit -------------------------------------------------------


def test_a_crash_between_the_sample_and_its_line_leaves_a_file_that_does_not_count(
    place: str, store: StoreSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CrashError(BaseException):
        pass

    def crash(*_args: Any) -> None:
        raise CrashError

    store(SAMPLES[:1])
    with StoreWriter(place, manifest()) as writer:
        monkeypatch.setattr(writer._journal, "_commit", crash)
        with pytest.raises(CrashError):
            put(writer, SAMPLES[1], one_dump(tmp_path / "dumps", SAMPLES[1]))
    assert list(Store(place).entries) == [0]
    with pytest.raises(StoreError, match="not extracted"):
        Store(place)[1]
    store(SAMPLES[1:2])
    assert list(Store(place).entries) == [0, 1]
    assert Store(place).verify(deep=True).clean


def test_a_resume_adds_to_what_is_there(place: str, store: StoreSamples) -> None:
    store(SAMPLES[:2])
    before = Store(place).entries
    with StoreWriter(place, manifest()) as writer:
        writer.record(failure(2))
    assert list(Store(place).journal_state.failed) == [2]
    store(SAMPLES[2:])
    state = Store(place).journal_state
    assert list(state.stored) == [0, 1, 2, 3]
    assert {index: state.stored[index] for index in before} == before
    assert state.failed == {}, "what is stored has not failed"


def test_many_threads_append_whole_lines(place: str) -> None:
    with StoreWriter(place, manifest()) as writer, ThreadPoolExecutor(8) as pool:
        list(pool.map(writer.record, map(failure, range(400))))
    assert list(Store(place).journal_state.failed) == list(range(400))


def test_a_journal_that_failed_once_acknowledges_nothing_more(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the leader of a group commit nor its followers may be told that they are durable."""

    def fail(*_args: Any) -> None:
        raise OSError(5, "Input/output error")

    refused = []
    with StoreWriter(place, manifest()) as writer:
        writer.record(failure(0))
        with monkeypatch.context() as patch:
            patch.setattr(writer._journal, "_commit", fail)

            def record(index: int) -> None:
                with pytest.raises((OSError, StoreError), match="Input/output error"):
                    writer.record(failure(index))
                refused.append(index)

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(record, range(1, 9)))
        with pytest.raises(StoreError, match="the journal is closed"):
            writer.record(failure(9))
    assert sorted(refused) == list(range(1, 9))
    assert list(Store(place).journal_state.failed) == [0]


def test_a_closed_writer_writes_nothing(place: str) -> None:
    writer = StoreWriter(place, manifest())
    writer.close()
    with pytest.raises((StoreError, JobError)):
        writer.record(failure(0))
    assert Store(place).journal_state.failed == {}


def test_what_is_revoked_is_gone_and_its_file_set_aside(place: str, store: StoreSamples) -> None:
    store(SAMPLES[:2])
    with StoreWriter(place, manifest()) as writer:
        writer.revoke(Store(place).entries[1], "the row changed")
    assert list(Store(place).entries) == [0]
    store(SAMPLES[1:2])
    assert list(Store(place).entries) == [0, 1]


def test_a_writer_of_a_part_is_told_what_that_part_has_stored_and_no_more(
    place: str, store: StoreSamples
) -> None:
    store(SAMPLES[:2], part="one")
    store(SAMPLES[2:], part="two")
    with StoreWriter(place, manifest(), part="one") as writer:
        assert list(writer.stored()) == [0, 1]
    assert list(Store(place).entries) == [0, 1, 2, 3]


def test_a_sample_is_printed_in_a_line(place: str, kind: str, store: StoreSamples) -> None:
    store(SAMPLES)
    encoding = "lossless" if kind == "lossless" else "plain"
    states = Store(place).manifest.states_sentence()
    assert repr(Store(place)[1]) == f"StoredSample(1: 6 tokens, {states}, {encoding})"


# --- verify and repair --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["header", "states", "ids", "mask"])
def test_a_flipped_bit_anywhere_is_found_by_deep_verification(
    place: str, store: StoreSamples, where: str
) -> None:
    store([random_sample(0, 6), random_sample(1, 6)])
    files = Files(place)
    size = len(files.read(1))
    offset = {"header": 60, "states": size - 54 - 100, "ids": size - 54, "mask": size - 1}[where]
    files.flip(1, offset)
    assert [fault.index for fault in Store(place).verify(deep=True).faults] == [1]
    with pytest.raises(StoreError, match="sample 1 is not sound"):
        Store(place).checked(1)


def test_missing_and_cut_files_are_found_without_reading_them(
    place: str, store: StoreSamples
) -> None:
    store(SAMPLES)
    files = Files(place)
    files.delete(0)
    files.replace(2, files.read(2)[:100])
    report = Store(place).verify()
    assert {fault.index: fault.check for fault in report.faults} == {0: "exists", 2: "size"}
    with pytest.raises(StoreError, match="sample 2 is not sound"):
        Store(place)[2]


def test_repair_quarantines_what_is_bad_and_the_rest_stays(place: str, store: StoreSamples) -> None:
    store(SAMPLES)
    Files(place).flip(1, 400)
    Files(place).delete(3)
    found = Store(place)
    spoilt = found.entries[1]
    assert found.repair(found.verify(deep=True)) == [1, 3]
    assert list(found.entries) == [0, 2]
    with pytest.raises(StoreError, match=r"sample 1 is not in the store: it was taken back \("):
        found[1]
    with pytest.raises(StoreError, match=r"taken back \(exists: .*not extracted again yet"):
        found[3]
    with pytest.raises(StoreError, match="it was not extracted"):
        found[9]
    with pytest.raises(FileNotFoundError):
        found.storage.stat(spoilt.file)
    stem = spoilt.file.rpartition("/")[2].removesuffix(".safetensors").split("-")[0]
    aside = f"quarantine/{stem}-{spoilt.entry}.safetensors"
    assert found.storage.stat(aside).size_bytes == spoilt.size_bytes
    store([SAMPLES[1], SAMPLES[3]])  # redone samples count again
    assert list(Store(place).entries) == [0, 1, 2, 3]
    assert Store(place).journal_state.revoked == {}
    assert Store(place).verify(deep=True).clean


def test_repair_leaves_alone_what_was_extracted_again_since_the_report(
    place: str, store: StoreSamples
) -> None:
    store(SAMPLES[:1])
    Files(place).flip(0, 400)
    old = Store(place)
    report = old.verify(deep=True)
    Store(place).repair(report)
    store(SAMPLES[:1])
    assert old.repair(report) == []
    assert Store(place).verify(deep=True).clean
    assert list(Store(place).entries) == [0]


# --- several writers ----------------------------------------------------------------------


def test_a_second_writer_of_a_shard_is_refused_with_its_owner_until_the_first_has_ended(
    place: str,
) -> None:
    with (
        StoreWriter(place, manifest()),
        pytest.raises(JobError, match="in use by another job") as caught,
    ):
        StoreWriter(place, manifest())
    assert "pid" in json.loads(caught.value.fields["owner"])
    StoreWriter(place, manifest()).close()


def test_of_writers_that_come_at_once_one_is_let_in(place: str) -> None:
    let_in, refused = [], []

    def open_writer() -> None:
        try:
            let_in.append(StoreWriter(place, manifest()))
        except JobError as error:
            refused.append(error)

    threads = [threading.Thread(target=open_writer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(let_in), len(refused)) == (1, 3)
    let_in[0].close()


def test_shards_have_their_own_journals_and_one_store_reads_them_all(
    place: str, store: StoreSamples
) -> None:
    for shard in range(3):
        samples = [random_sample(i, 4) for i in range(shard, 9, 3)]
        store(samples, shard_index=shard, num_shards=3)
    assert list(Store(place).entries) == list(range(9))


def test_shards_are_written_side_by_side_and_another_split_is_refused(place: str) -> None:
    with (
        StoreWriter(place, manifest(), 0, 2),
        StoreWriter(place, manifest(), 1, 2),
        pytest.raises(JobError, match="num_shards"),
    ):
        StoreWriter(place, manifest(), 2, 3)
    StoreWriter(place, manifest(), 2, 3).close()


# --- the manifest -------------------------------------------------------------------------


def test_a_store_is_not_resumed_with_another_manifest(place: str) -> None:
    StoreWriter(place, manifest()).close()
    with pytest.raises(StoreError, match="boundaries differ") as caught:
        StoreWriter(place, manifest(boundaries=(2, 3, 5)))
    assert caught.value.fields["differing"] == {"boundaries": ((1, 3, 5), (2, 3, 5))}
    StoreWriter(place, manifest()).close()  # the refusal left no lock behind
    assert isinstance(Store(place).manifest, Manifest)
    assert Store(place).manifest.boundaries == (1, 3, 5)
