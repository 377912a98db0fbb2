"""What lies on disk, byte for byte: today's dump and store, and what an older version wrote.

``golden/`` holds the bytes. A format that older readers would misread gets a new name in its
``format`` field; a new field, without which files mean what they meant, does not. What was written
before is read either way.
"""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make.dumps import BOUNDARIES, put_dump
from make.stores import manifest, put

from hslib import demo
from hslib.dataset import Sample
from hslib.export import TRAINERS, export_store
from hslib.export.export import read_rows
from hslib.server.dumps import DumpDir
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import Entry, Store, StoreWriter

GOLDEN = Path(__file__).parent / "golden"
OLDER = GOLDEN / "older"
EXPECTED = Expected(BOUNDARIES, hidden_size=8)
SAMPLE = Sample(
    3, "row-\u00e9", np.array([5, 511, 3], np.int32), np.array([0, 1, 1], np.uint8)
)  # its name is not ASCII
FACTS = {"hidden_size": 8, "server": {"tp_size": 1, "dtype": "auto"}}


def states() -> torch.Tensor:
    """Exact in bf16: bf16 [3, 4, 8]"""
    return ((torch.arange(3 * 4 * 8) - 50) / 8).view(3, 4, 8).to(torch.bfloat16)


def rounded(last: int) -> torch.Tensor:
    """``states()`` with the first ``last`` states as e4m3 with a scale per token and state."""
    made = states()
    values = made[:, :last].float()
    scales = values.abs().amax(-1, keepdim=True) / 448
    made[:, :last] = ((values / scales).to(torch.float8_e4m3fn).float() * scales).bfloat16()
    return made


ENCODED = {
    "lossless": states,
    "fp8": lambda: rounded(4),
    "fp8-aux": lambda: rounded(3),
}


def files_of(folder: Path) -> dict[str, bytes]:
    """All but the locks of writers that are gone."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}


def write_dump(root: Path) -> None:
    put_dump(root, "dump", SAMPLE.input_ids, states())


def write_store(path: Path, dumps: Path) -> None:
    with StoreWriter(path, manifest(**FACTS)) as writer:
        put(writer, SAMPLE, DumpDir(dumps).load("dump"), EXPECTED)
        writer.record(Entry(index=4, id="row-4", status="failed", reason="no answer", attempts=3))


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and entry ids as in the golden files."""
    numbers = itertools.count(1)
    monkeypatch.setattr("hslib.store.writer.time.time", lambda: 1.75e9)
    monkeypatch.setattr(
        "hslib.store.entry.uuid.uuid4", lambda: SimpleNamespace(hex=f"{next(numbers):032x}"[::-1])
    )


def test_a_dump_has_these_bytes(tmp_path: Path) -> None:
    write_dump(tmp_path)
    assert files_of(tmp_path / "dump") == files_of(GOLDEN / "dump")


@pytest.mark.usefixtures("still")
def test_a_sample_file_its_journal_line_and_the_manifest_have_these_bytes(tmp_path: Path) -> None:
    write_store(tmp_path / "store", GOLDEN)
    assert files_of(tmp_path / "store") == files_of(GOLDEN / "store")


@pytest.mark.parametrize("encoding", ["lossless", "fp8", "fp8-aux"])
def test_encoded_bytes_are_read_as_what_was_written(encoding: str) -> None:
    store = Store(GOLDEN / f"store-{encoding}")
    assert store.verify(deep=True).clean
    assert store.entries[SAMPLE.index].encoding == store.manifest.encoding == encoding
    (stored,) = store
    assert torch.equal(stored.hidden_states, ENCODED[encoding]())
    assert torch.equal(stored.final, ENCODED[encoding]()[:, -1])
    assert torch.equal(stored.layer(3), ENCODED[encoding]()[:, 1])


def test_these_bytes_are_read_as_what_was_written() -> None:
    dump = DumpDir(GOLDEN).load("dump")
    validate(dump, SAMPLE, EXPECTED)
    store = Store(GOLDEN / "store")
    assert store.verify(deep=True).clean
    assert store.manifest == manifest(**FACTS)
    (stored,) = store
    for found in (torch.from_numpy(np.array(dump.hidden_states)), stored.hidden_states):
        assert torch.equal(found.view(torch.bfloat16), states())
    assert stored.input_ids.tolist() == SAMPLE.input_ids.tolist()
    assert stored.loss_mask.tolist() == SAMPLE.loss_mask.tolist()
    assert (stored.entry.id, stored.entry.finished_at) == (SAMPLE.id, 1.75e9)
    assert store.journal_state.failed[4].reason == "no answer"


# --- written before states were witnessed -------------------------------------------------


@pytest.fixture
def older(tmp_path: Path) -> Path:
    shutil.copytree(OLDER, tmp_path / "older")
    return tmp_path / "older"


def test_an_older_store_opens_and_verifies() -> None:
    store = Store(OLDER / "store")
    assert {index: entry.num_tokens for index, entry in store.entries.items()} == {0: 5, 1: 6, 2: 4}
    assert store.entries[1].attempts == 2, "its first line was revoked"
    assert store.journal_state.failed[3].reason == "no answer"
    assert store.journal_state.rejected[4].reason == "empty: no ids"
    assert store.verify(deep=True).clean
    assert [sample.final.shape for sample in store] == [(5, 96), (6, 96), (4, 96)]
    assert set(store.witness().values()) == {None}
    said = "not witnessed: written before layers were asked what they read"
    assert store.manifest.witness_sentence() == said
    assert store.witness_sentence() == f"States are {said}."


def test_an_older_store_is_resumed_by_todays_writer(older: Path, tmp_path: Path) -> None:
    before = Store(older / "store")
    facts = before.manifest.model_copy(update={"weights": {"lm_head": "digest"}})
    sample = Sample(3, "row-3", SAMPLE.input_ids, SAMPLE.loss_mask)
    wide = states().repeat(1, 1, 12)
    put_dump(tmp_path / "dumps", "d", sample.input_ids, wide, before.manifest.boundaries)
    expected = Expected(before.manifest.boundaries, 96)
    with StoreWriter(older / "store", facts) as writer:
        put(writer, sample, DumpDir(tmp_path / "dumps").load("d"), expected)
    after = Store(older / "store")
    assert list(after.entries) == [0, 1, 2, 3]
    assert after.journal_state.failed == {}
    assert after.verify(deep=True).clean
    assert after.manifest == before.manifest, "nothing is claimed of rows that were stored before"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_older_export_is_resumed_and_is_made_of_the_bytes_that_are_made_today(
    older: Path, tmp_path: Path, trainer: str
) -> None:
    out, store = older / f"export-{trainer}", Store(older / "store")
    report = export_store(store, out, TRAINERS[trainer](), demo.model_path())
    assert (report.rows, report.made) == (3, 0)
    assert report.facts()["states"].startswith("not witnessed: ")
    export_store(store, tmp_path / "anew", TRAINERS[trainer](), demo.model_path())
    for row in read_rows(out).values():
        assert (out / row.file).read_bytes() == (tmp_path / "anew" / row.file).read_bytes()
