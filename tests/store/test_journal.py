"""The journal in a file, and what its lines mean together."""

import threading
from pathlib import Path

import pytest

from hslib.errors import StoreError
from hslib.store import Entry, combine, read_journal
from hslib.store.entry import JournalState, journal_name
from hslib.store.journal import Journal


def test_entries_come_back_as_they_were_appended(tmp_path: Path) -> None:
    entries = [Entry(index=i, id=f"r{i}", status="ok", layers=[{"absmax": 1.5}]) for i in range(3)]
    journal = Journal(tmp_path / "journal.jsonl")
    for entry in entries:
        journal.append(entry)
    journal.close()
    assert list(read_journal(tmp_path / "journal.jsonl")) == entries


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


def test_a_name_that_cannot_be_made_durable_has_no_line(
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


# --- what lines mean -----------------------------------------------------------------------


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


def test_the_latest_of_several_live_lines_counts() -> None:
    early = Entry(index=0, id="a", status="ok", finished_at=1.0)
    late = Entry(index=0, id="a", status="ok", finished_at=2.0)
    assert combine([early, late]).stored == combine([late, early]).stored == {0: late}


def test_a_failure_that_was_followed_by_success_does_not_come_back_when_that_is_revoked() -> None:
    """The row is new work then: its file was lost, or it changed."""
    failed = Entry(index=5, id="r", status="failed", finished_at=1.0)
    ok = Entry(index=5, id="r", status="ok", finished_at=2.0)
    revoked = Entry(index=5, id="r", status="revoked", revokes=ok.entry, finished_at=3.0)
    for lines in ([failed, ok, revoked], [revoked, ok, failed]):
        assert combine(lines) == JournalState(revoked={5: revoked})
    again = Entry(index=5, id="r", status="failed", finished_at=4.0)
    assert combine([failed, ok, revoked, again]).failed == {5: again}


def test_journal_names_tell_shards_apart() -> None:
    assert journal_name(0, 1) == "journal.jsonl"
    assert journal_name(3, 8) == "journal-00003-of-00008.jsonl"
