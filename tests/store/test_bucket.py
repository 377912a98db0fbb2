"""A store in a bucket, on a real S3 server: what is told as stored is there, whatever happens."""

from pathlib import Path

import pytest
import torch
from fakes.bucket import Bucket, Fate, Meddler
from make.dumps import write_dump
from make.rows import random_sample
from make.stores import manifest, one_dump, put, store_samples

from hslib.dataset import Sample
from hslib.errors import StoreError
from hslib.server.dumps import Dump, DumpDir
from hslib.server.plugin_info import Expected
from hslib.store import (
    Store,
    StoreWriter,
)
from hslib.store.bucket import objects

SAMPLES = [random_sample(i, 5 + i) for i in range(4)]


# --- what is written is what is read ------------------------------------------------------


def test_a_samples_object_has_a_name_that_no_other_line_uses(
    bucket: Bucket, tmp_path: Path
) -> None:
    for _ in range(2):
        store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    entries = list(Store(bucket.url).storage.entries())
    assert len(bucket.samples()) == len(entries) == 2 * len(SAMPLES)
    assert sorted(bucket.samples()) == sorted(entry.file for entry in entries)
    for entry in entries:
        assert entry.file == f"samples/00000/{entry.index:08d}-{entry.entry}.safetensors"
        assert bucket.objects.head(entry.file).etag == entry.etag
    assert not [name for name in bucket.names() if "lock" in name or "check" in name]


def test_worker_processes_read_it_too(bucket: Bucket, tmp_path: Path) -> None:
    """A forked process can't use its parent's connections."""
    from torch.utils.data import DataLoader

    from hslib.export.torch_dataset import StoreDataset, collate_packed

    states = store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    dataset = StoreDataset(bucket.url)
    assert torch.equal(dataset[0].final, states[0][:, -1])
    loader = DataLoader(dataset, num_workers=2, collate_fn=collate_packed)
    assert all(
        torch.equal(batch.final[0], state[:, -1])
        for batch, state in zip(loader, states, strict=True)
    )


def test_a_copy_of_the_bucket_in_a_directory_is_a_store_and_so_is_the_way_back(
    bucket: Bucket, tmp_path: Path
) -> None:
    states = store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    for name in bucket.names():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(bucket.objects.get(name))
    assert Store(tmp_path / "copy").verify(deep=True).clean
    store_samples(tmp_path / "local", tmp_path / "dumps", SAMPLES)
    store = Store(bucket.upload(tmp_path / "local"))
    assert store.verify().clean
    assert store.verify(deep=True).clean
    assert torch.equal(store[2].hidden_states, states[2])


WIDE = Expected((1, 3, 5), hidden_size=2048)


def wide_dump(tmp_path: Path) -> tuple[Sample, Dump, torch.Tensor]:
    """12.5 MB of states."""
    sample = random_sample(0, 760)
    states = write_dump(tmp_path / "dumps", "w", sample, WIDE)
    return sample, DumpDir(tmp_path / "dumps").load("w"), states


def test_a_large_sample_is_uploaded_in_parts(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    sample, dump, states = wide_dump(tmp_path)
    with StoreWriter(bucket.url, manifest(hidden_size=2048)) as writer:
        put(writer, sample, dump, WIDE)
    store = Store(bucket.url)
    assert store.entries[0].etag.endswith("-3"), "an ETag of three parts"
    assert torch.equal(store[0].hidden_states, states)
    assert store.verify(deep=True).clean


def test_blocks_hold_every_byte_once() -> None:
    parts = [b"header", memoryview(bytes(range(250))), b"", b"tail"]
    for size in (1, 7, 100, 260, 1000):
        found = list(objects.blocks(parts, size))
        assert b"".join(found) == b"".join(parts)
        assert {len(block) for block in found[:-1]} <= {size}


# --- somebody else writes there -----------------------------------------------------------


def test_an_object_that_somebody_overwrote_is_noticed_without_reading_the_others(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    files = [entry.file for entry in Store(bucket.url).entries.values()]
    other = bytearray(bucket.objects.get(files[1]))
    other[-3] ^= 1
    bucket.objects.put(files[1], bytes(other))  # the same size
    bucket.objects.put(files[2], b"something else")
    bucket.objects.delete(files[3])
    store = Store(bucket.url)
    meddler.seen.clear()
    report = store.verify()
    assert {f.index: f.check for f in report.faults} == {1: "checksum", 2: "size", 3: "exists"}
    assert "somebody wrote another object there" in report.faults[0].detail
    for method in ("HEAD", "GET"):
        asked = {path for how, path, _ in meddler.seen if how == method and ".safetensors" in path}
        assert len(asked) == 1, "of the others a listing tells; only the suspicious one is read"
    with pytest.raises(StoreError, match="sample 2 is not sound"):
        store[2]
    with pytest.raises(StoreError, match="sample 1 is not sound: checksum"):
        store.checked(1)
    assert store.repair(report) == [1, 2, 3]
    assert list(Store(bucket.url).entries) == [0]
    assert len(bucket.names("quarantine/")) == 2
    store_samples(bucket.url, tmp_path / "dumps", SAMPLES[1:])
    assert list(Store(bucket.url).entries) == [0, 1, 2, 3]
    assert Store(bucket.url).verify(deep=True).clean


def test_the_same_bytes_written_anew_are_no_fault(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that was copied has other ETags."""
    sample, dump, _ = wide_dump(tmp_path)
    with StoreWriter(bucket.url, manifest(hidden_size=2048)) as writer:
        entry = put(writer, sample, dump, WIDE)
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    assert bucket.objects.put_parts(entry.file, [bucket.objects.get(entry.file)]) != entry.etag
    assert Store(bucket.url).verify().clean


# --- uploads that fail --------------------------------------------------------------------


def test_an_upload_that_is_cut_off_is_tried_again(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    cut: list[str] = []

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "PUT" and "samples/" in path and not cut:
            cut.append(path)
            return "cut"
        return "pass"

    meddler.judge = judge
    store_samples(bucket.url, tmp_path / "dumps", SAMPLES[:2])
    assert cut
    assert Store(bucket.url).verify(deep=True).clean
    assert len(Store(bucket.url)) == 2


def test_an_upload_that_stays_cut_off_is_an_error_and_nothing_is_marked_done(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    meddler.judge = lambda method, path, _body: (
        "cut" if method == "PUT" and "samples/00000/00000001" in path else "pass"
    )
    with pytest.raises(StoreError, match="Run again to resume") as caught:
        store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    assert caught.value.fields["bucket"] == bucket.name
    assert "samples/00000/00000001" in caught.value.fields["key"]
    assert list(Store(bucket.url).entries) == [0]
    assert Store(bucket.url).verify(deep=True).clean
    meddler.judge = lambda *_: "pass"
    store_samples(bucket.url, tmp_path / "dumps", SAMPLES[1:])
    assert list(Store(bucket.url).entries) == [0, 1, 2, 3]


def test_an_upload_in_parts_that_fails_leaves_nothing_behind(
    bucket: Bucket, meddler: Meddler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    meddler.judge = lambda _method, path, _body: (
        (403, "AccessDenied") if "partNumber=2" in path else "pass"
    )
    sample, dump, _ = wide_dump(tmp_path)
    with (
        StoreWriter(bucket.url, manifest(hidden_size=2048)) as writer,
        pytest.raises(StoreError, match="s3:GetObject"),
    ):
        put(writer, sample, dump, WIDE)
    assert [name.partition("?")[0] for name, _ in meddler.puts("partNumber=1")]
    assert bucket.unfinished_uploads() == 0
    assert bucket.samples() == []
    assert len(Store(bucket.url)) == 0


def test_a_sample_takes_two_requests_and_its_line_names_the_objects_etag(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    dumps = [one_dump(tmp_path / "dumps", sample) for sample in SAMPLES]
    with StoreWriter(bucket.url, manifest()) as writer:
        for sample, dump in zip(SAMPLES, dumps, strict=True):
            meddler.seen.clear()
            entry = put(writer, sample, dump)
            kinds = [(method, "/samples/" in path) for method, path, _ in meddler.seen]
            assert kinds == [("PUT", True), ("PUT", False)], "the sample, then the journal"
            assert entry.etag == bucket.objects.head(entry.file).etag


def test_an_object_that_somebody_wrote_over_is_found_without_reading_the_others(
    bucket: Bucket, tmp_path: Path
) -> None:
    store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    name = bucket.samples()[0]
    content = bucket.objects.get(name)
    bucket.objects.put(name, content[:-1] + bytes([content[-1] ^ 1]))
    (fault,) = Store(bucket.url).verify(deep=False).faults
    assert fault.index == 0 and "somebody wrote another object there" in fault.detail


def test_an_upload_that_is_answered_without_an_etag_is_asked_for(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    meddler.silent_on = ("etag",)
    store_samples(bucket.url, tmp_path / "dumps", SAMPLES)
    asked = [path for method, path, _ in meddler.seen if method == "HEAD" and "/samples/" in path]
    assert len(asked) == len(SAMPLES)
    store = Store(bucket.url)
    assert store.verify(deep=True).clean
    assert [entry.etag for entry in store.entries.values()] == [
        bucket.objects.head(entry.file).etag for entry in store.entries.values()
    ]


def test_a_store_that_holds_something_else_than_was_sent_gets_no_journal_line(
    bucket: Bucket, meddler: Meddler, tmp_path: Path
) -> None:
    """Somebody wrote over the object between the upload and the question what is there."""
    meddler.silent_on = ("etag",)

    def judge(method: str, path: str, _body: bytes) -> Fate:
        if method == "HEAD" and "samples/" in path:
            bucket.objects.put(path.split("/states/kimi/")[1], b"mine now")
        return "pass"

    meddler.judge = judge
    with pytest.raises(StoreError, match="holds something else than was sent"):
        store_samples(bucket.url, tmp_path / "dumps", SAMPLES[:1])
    assert len(Store(bucket.url)) == 0
