"""Faults of a server that a real one won't show on demand: a hand-made one that misbehaves."""

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from fakes.server import DROP, NO_DUMP, SAMPLES, FakeServer, assert_store_is_right, states_of
from hs_dump.hooks import write_plugin_json
from make.jobs import prepare, run, wanted
from make.sources import FORMS

from hslib import extract
from hslib.errors import DatasetError, JobError, ParameterError, ServerError, StoreError
from hslib.parameters import ExtractionParameters
from hslib.server.endpoint import Endpoint
from hslib.server.endpoints import open_endpoints
from hslib.stats.figures import plot_lengths
from hslib.store import Store


@pytest.fixture
def parameters(fake: FakeServer, tmp_path: Path) -> Callable[..., ExtractionParameters]:
    def make(**values: Any) -> ExtractionParameters:
        own = {
            "dump_timeout_s": 0.3,
            "concurrency": 4,
            "samples_per_request": 3,
        }
        return wanted(fake, tmp_path, SAMPLES, **{**own, **values})

    return make


def once(index: int, outcome: int) -> Callable[[str, np.ndarray, int], int | None]:
    """Misbehave at one sample's first attempt."""
    return lambda rid, _ids, attempt: (
        outcome if rid.startswith(f"hs-{index}-") and attempt == 1 else None
    )


@pytest.mark.parametrize("outcome", [500, 503, 429, DROP, NO_DUMP])
def test_a_fault_that_passes_costs_only_another_try(
    fake: FakeServer, parameters: Any, outcome: int
) -> None:
    fake.misbehave = once(4, outcome)
    assert run(parameters()).is_whole
    assert_store_is_right(parameters().store_path)
    assert Store(parameters().store_path).entries[4].attempts == 2


def test_a_refusal_is_tried_once_alone_and_names_the_row(fake: FakeServer, parameters: Any) -> None:
    fake.misbehave = lambda rid, *_: 400 if rid.startswith("hs-4-") else None
    result = run(parameters())
    assert list(result.failed) == [4]
    assert "answered 400" in result.failed[4]
    assert len([rid for rid in fake.requests if rid.startswith("hs-4-")]) == 2
    rest = [s.index for s in SAMPLES if s.index != 4]
    assert_store_is_right(parameters().store_path, rest)


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (lambda path: os.truncate(path, 900), "readable"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"), "input_ids"),
        (
            lambda path: path.write_bytes(
                path.read_bytes()[:600] + b"\xff\xff" + path.read_bytes()[602:]
            ),
            "checksum",
        ),
    ],
)
def test_a_spoilt_dump_is_tried_again_and_never_stored(
    fake: FakeServer, parameters: Any, spoil: Any, check: str
) -> None:
    def misbehave(rid: str, ids: np.ndarray, attempt: int) -> int | None:
        if not rid.startswith("hs-7-") or attempt > 1:
            return None
        fake.dump(rid, ids)
        spoil(fake.dumps / rid / "hidden_states.safetensors")
        return NO_DUMP

    fake.misbehave = misbehave
    assert run(parameters()).is_whole
    assert_store_is_right(parameters().store_path)
    log = (parameters().run_path / "extraction.log").read_text()
    assert "[7] try 1" in log
    assert check in log


def test_other_samples_states_under_this_samples_id_are_never_stored(
    fake: FakeServer, parameters: Any
) -> None:
    """The case study's fault: every dump is the one of the sample before."""
    previous: list[np.ndarray] = []

    def shift(rid: str, ids: np.ndarray, _attempt: int) -> int | None:
        if rid.startswith("hs-999999999-"):
            return None
        fake.dump(rid, previous[-1] if previous else ids[::-1].copy())
        previous.append(ids)
        return NO_DUMP

    fake.misbehave = shift
    wanted = parameters(concurrency=1, samples_per_request=1, max_attempts=1)
    result = run(wanted)
    assert len(result.failed) == len(SAMPLES)
    assert len(Store(wanted.store_path)) == 0
    assert all("is not sample" in reason for reason in result.failed.values())


def test_a_late_answer_of_an_earlier_try_is_not_mistaken_for_this_ones(
    fake: FakeServer, parameters: Any
) -> None:
    late: list[threading.Timer] = []

    def misbehave(rid: str, ids: np.ndarray, attempt: int) -> int | None:
        if rid.startswith("hs-3-") and attempt == 1:
            wrong = ids.copy()
            wrong[0] += 1
            late.append(threading.Timer(0.6, lambda: fake.dump(rid, wrong)))
            late[-1].start()
            return NO_DUMP
        return None

    fake.misbehave = misbehave
    assert run(parameters()).is_whole
    for timer in late:
        timer.join()
    assert_store_is_right(parameters().store_path)


def test_a_request_without_an_answer_times_out_and_is_tried_again(
    fake: FakeServer, parameters: Any
) -> None:
    def misbehave(rid: str, _ids: np.ndarray, attempt: int) -> int | None:
        if rid.startswith("hs-5-") and attempt == 1:
            time.sleep(1.5)
        return None

    fake.misbehave = misbehave
    assert run(parameters(request_timeout_s=0.5)).is_whole
    assert_store_is_right(parameters().store_path)


def test_too_many_failures_in_a_row_stop_the_job(fake: FakeServer, parameters: Any) -> None:
    fake.misbehave = lambda rid, *_: None if rid.startswith("hs-999999999-") else 400
    with pytest.raises(JobError, match="samples in a row failed"):
        run(parameters(max_failures_in_a_row=3, concurrency=1))
    assert 3 <= len(Store(parameters().store_path).journal_state.failed) <= 5


def goes_away(fake: FakeServer, index: int, away_s: float, **plugin: Any) -> threading.Event:
    """From now on the server goes when it is first asked for a row, and comes back at its port.

    Args:
        plugin: what the plugin.json of the one that comes back says otherwise.

    Returns:
        Set when it has gone.
    """
    port, gone, before = int(fake.url.rsplit(":", 1)[1]), threading.Event(), fake.misbehave

    def misbehave(rid: str, ids: np.ndarray, attempt: int) -> int | None:
        if rid.startswith(f"hs-{index}-") and not gone.is_set():
            gone.set()
            threading.Thread(target=restart, daemon=True).start()
            time.sleep(0.1)
            return DROP
        return before(rid, ids, attempt)

    def restart() -> None:
        fake.stop()
        time.sleep(away_s)
        fake.start(port, **plugin)

    fake.misbehave = misbehave
    return gone


def test_a_server_that_comes_back_is_waited_for(fake: FakeServer, parameters: Any) -> None:
    gone = goes_away(fake, 5, away_s=1.0)
    assert run(parameters(concurrency=2)).is_whole
    assert gone.is_set()
    assert_store_is_right(parameters().store_path)


def test_a_server_that_dies_while_it_is_proven_again_is_waited_for(
    fake: FakeServer, parameters: Any
) -> None:
    """It answered /health once more, and was gone when the canary came."""
    dropped: list[str] = []

    def misbehave(rid: str, *_: Any) -> int | None:
        is_canary = "-999999999-" in rid
        if (dropped and is_canary and len(dropped) < 3) or (not dropped and not is_canary):
            dropped.append(rid)
            return DROP
        return None

    wanted = parameters()
    fleet = open_endpoints(wanted)
    job = extract.prepare(wanted, fleet)
    fake.misbehave = misbehave
    assert extract.run(job, fleet).is_whole
    assert len(dropped) == 3
    assert_store_is_right(parameters().store_path)


def test_another_model_that_comes_back_is_refused_with_the_fields(
    fake: FakeServer, parameters: Any
) -> None:
    goes_away(fake, 5, away_s=0.5, model_class="Qwen3ForCausalLM")
    with pytest.raises(ServerError, match="model_class differ"):
        run(parameters(concurrency=1))
    assert Store(parameters().store_path).verify(deep=True).clean


def other_states(ids: np.ndarray) -> torch.Tensor:
    """Off by 10 % in one layer, which is still a state like any other."""
    states = states_of(ids)
    states[:, 1] += 0.1 * torch.randn(states[:, 1].shape)
    return states


@pytest.mark.parametrize("what", ["weights", "states"])
def test_a_server_that_is_swapped_between_two_requests_is_refused_before_anything_is_stored(
    fake: FakeServer, parameters: Any, what: str
) -> None:
    """No request fails: the new process answers the next one as if nothing had been."""
    swapped: list[str] = []

    def misbehave(rid: str, *_: Any) -> int | None:
        if rid.startswith("hs-5-"):
            plugin = json.loads((fake.dumps / "plugin.json").read_text())
            if what == "weights":
                plugin["weights"] = plugin["weights"] | {"model.layers.4": "other"}
            else:
                fake.states = other_states
            write_plugin_json(fake.dumps, plugin)
            swapped.append(rid)
        return None

    weights = {f"model.layers.{n}": "same" for n in range(6)}
    fake.stop()
    fake.start(weights=weights)
    fake.misbehave = misbehave
    said = {
        "weights": r"weights of model\.layers\.4 \(1 of 6 groups\) differ",
        "states": "canary's states .the weights' files are the same.* at boundary 3 differ",
    }
    wanted = parameters(concurrency=1, samples_per_request=1)
    with pytest.raises(ServerError, match=said[what]):
        run(wanted)
    assert len(swapped) == 1
    assert 5 not in Store(wanted.store_path).entries


def test_the_same_server_started_again_between_two_requests_goes_on(
    fake: FakeServer, parameters: Any
) -> None:
    started: list[str] = []

    def misbehave(rid: str, *_: Any) -> int | None:
        if rid.startswith("hs-5-") and not started:
            started.append(rid)
            plugin = json.loads((fake.dumps / "plugin.json").read_text())
            write_plugin_json(fake.dumps, plugin | {"model_path": "/moved"})
        return None

    fake.misbehave = misbehave
    assert run(parameters(concurrency=1)).is_whole
    assert fake.times_asked(started[0]) == 2, "what came before the proof is asked for again"
    assert_store_is_right(parameters().store_path)


def test_a_resume_on_other_weights_is_refused_and_on_the_same_elsewhere_goes_on(
    fake: FakeServer, parameters: Any, tmp_path: Path
) -> None:
    weights = {"model.layers.0": "a", "model.layers.10": "b", "model.layers.9": "c"}
    fake.stop()
    fake.start(weights=weights)
    run(parameters(server_url=fake.url, limit=3))
    for change in ({"model.layers.9": "x", "model.layers.10": "y"}, {}):
        fake.stop()
        fake.start(weights=weights | change)
        wanted = parameters(server_url=fake.url)
        if change:
            with pytest.raises(StoreError, match=r"layers\.9, model\.layers\.10 \(2 of 3 groups"):
                run(wanted)
    moved = tmp_path / "moved"
    shutil.copytree(fake.model, moved)
    assert run(parameters(server_url=fake.url, model_path=str(moved))).is_whole


def test_a_store_of_before_is_resumed_and_the_job_says_what_is_not_checked(parameters: Any) -> None:
    assert "WHICH MODEL" not in prepare(parameters(limit=3)).facts()
    run(parameters(limit=3))
    path = parameters().store_path / "manifest.json"
    old = json.loads(path.read_text())
    assert old["canary"]["num_tokens"] == 24
    for name in ("weights", "canary", "accepted_missing"):
        del old[name]
    path.write_text(json.dumps(old))
    before = path.read_text()
    assert "can't be checked" in prepare(parameters()).facts()["WHICH MODEL"]
    assert run(parameters()).is_whole
    assert path.read_text() == before, "nothing is claimed of rows that were stored before"


def test_a_server_that_stays_away_ends_the_job_and_the_next_run_goes_on(
    fake: FakeServer, parameters: Any
) -> None:
    port = int(fake.url.rsplit(":", 1)[1])

    def misbehave(rid: str, *_: Any) -> int | None:
        if rid.startswith("hs-6-"):
            threading.Thread(target=fake.stop, daemon=True).start()
            time.sleep(0.2)
            return DROP
        return None

    fake.misbehave = misbehave
    with pytest.raises(JobError, match="did not come back"):
        run(parameters(server_wait_s=0.5, concurrency=1))
    stored = len(Store(parameters().store_path))
    assert 0 < stored < len(SAMPLES)
    fake.misbehave = lambda *_: None
    fake.start(port)
    fake.requests.clear()
    result = run(parameters())
    assert result.is_whole
    assert result.totals.already_done == stored
    assert_store_is_right(parameters().store_path)


@pytest.fixture
def second(tmp_path: Path, model_of: Callable[[str], Path]) -> Iterator[FakeServer]:
    server = FakeServer(tmp_path / "dumps-2", model_of("llama"))
    yield server
    server.stop()


def both(fake: FakeServer, second: FakeServer) -> dict[str, Any]:
    return {
        "server_url": [fake.url, second.url],
        "dump_dir": [str(fake.dumps), str(second.dumps)],
        "concurrency": 2,
        "samples_per_request": 1,
    }


def test_two_servers_share_the_rows(fake: FakeServer, second: FakeServer, parameters: Any) -> None:
    def slowly(*_args: Any) -> None:
        time.sleep(0.02)

    fake.misbehave = second.misbehave = slowly
    assert run(parameters(**both(fake, second))).is_whole
    assert_store_is_right(parameters().store_path)
    shares = [len([r for r in s.requests if "-999999999-" not in r]) for s in (fake, second)]
    assert sum(shares) == len(SAMPLES), "a row goes to one of them"
    assert min(shares) >= 3


def test_one_server_dying_costs_only_what_it_had_in_flight(
    fake: FakeServer, second: FakeServer, parameters: Any
) -> None:
    def die(rid: str, *_: Any) -> int | None:
        if "-999999999-" in rid:
            return None
        threading.Thread(target=second.stop, daemon=True).start()
        time.sleep(0.2)
        return DROP

    second.misbehave = die
    fake.misbehave = lambda *_: time.sleep(0.02)
    wanted = parameters(**both(fake, second), server_wait_s=0.5)
    result = run(wanted)
    assert result.is_whole
    assert_store_is_right(wanted.store_path)
    log = (wanted.run_path / "extraction.log").read_text()
    assert "going on with 1 other server(s)" in log
    tries = [e.attempts for e in Store(wanted.store_path).entries.values()]
    assert sum(tries) <= len(SAMPLES) + 2, "only the tries in flight are repeated"


def test_a_server_that_hangs_does_not_hold_up_the_others(
    fake: FakeServer, second: FakeServer, parameters: Any
) -> None:
    def hang(rid: str, *_: Any) -> None:
        if "-999999999-" not in rid:
            time.sleep(3)

    second.misbehave = hang
    started = time.monotonic()
    assert run(parameters(**both(fake, second), request_timeout_s=10.0)).is_whole
    assert time.monotonic() - started < 8
    served = [rid for rid in fake.requests if "-999999999-" not in rid]
    assert len(served) >= len(SAMPLES) - 2


def test_servers_of_different_models_are_refused_with_the_fields(
    fake: FakeServer, second: FakeServer, parameters: Any
) -> None:
    write_plugin_json(
        second.dumps, {**json.loads((fake.dumps / "plugin.json").read_text()), "num_layers": 7}
    )
    with pytest.raises(ServerError, match="num_layers differ"):
        run(parameters(**both(fake, second)))


def test_each_server_needs_a_dump_directory_or_all_share_one(parameters: Any) -> None:
    with pytest.raises(ParameterError, match="dump_dir has 1 entries, server_url 2"):
        parameters(server_url=["http://a", "http://b"], dump_dir=["x"])


def test_a_row_that_its_server_never_answers_fails_and_does_not_hang_the_job(
    fake: FakeServer, parameters: Any
) -> None:
    fake.misbehave = lambda rid, *_: DROP if rid.startswith("hs-4-") else None
    result = run(parameters())
    assert list(result.failed) == [4]
    assert_store_is_right(parameters().store_path, [s.index for s in SAMPLES if s.index != 4])
    log = (parameters().run_path / "extraction.log").read_text()
    assert log.count("[4] no answer") == 3, "in company, by itself, and with nothing in flight"


def test_a_proxy_without_a_server_behind_it_is_waited_out(
    fake: FakeServer, parameters: Any
) -> None:
    """503 for a second and a half is nobody's fault."""
    until = time.monotonic() + 1.5
    fake.misbehave = lambda rid, *_: (
        503 if "-999999999-" not in rid and time.monotonic() < until else None
    )
    result = run(parameters(max_attempts=20))
    assert result.is_whole


def test_running_a_plan_twice_is_refused_and_takes_nothing_back(
    fake: FakeServer, parameters: Any
) -> None:
    fleet = open_endpoints(parameters())
    job = extract.prepare(parameters(), fleet)
    assert extract.run(job, fleet).is_whole
    fake.requests.clear()
    with pytest.raises(JobError, match=r"extract\.prepare again"):
        extract.run(job, fleet)
    assert fake.requests == []
    assert_store_is_right(parameters().store_path)
    assert not (parameters().store_path / "quarantine").exists()


def test_shards_that_are_planned_together_do_not_stop_each_other(parameters: Any) -> None:
    """One shard's job stores rows between another's plan and its run."""
    planned = []
    for shard in range(2):
        wanted = parameters(shard_index=shard, num_shards=2)
        fleet = open_endpoints(wanted)
        planned.append((extract.prepare(wanted, fleet), fleet))
    for job, fleet in planned:
        assert extract.run(job, fleet).is_whole
    assert_store_is_right(parameters().store_path)


def test_dumps_of_failed_and_late_tries_do_not_pile_up_while_the_job_runs(
    fake: FakeServer, parameters: Any
) -> None:
    """Looked at before each try of the sample, and once it has failed for good."""
    seen: list[list[str]] = []
    wanted = parameters(concurrency=2, samples_per_request=1)

    def look() -> None:
        seen.append([p.name for p in fake.dumps.glob("hs-2-*")])

    def misbehave(rid: str, ids: np.ndarray, _attempt: int) -> int | None:
        if rid.startswith("hs-2-"):
            look()
            fake.dump(rid, ids[::-1].copy())
            return NO_DUMP
        if rid.startswith("hs-11-"):
            log = wanted.run_path / "extraction.log"
            while "[2] failed" not in log.read_text():
                time.sleep(0.02)
            time.sleep(0.2)
            look()
        return None

    fake.misbehave = misbehave
    result = run(wanted)
    assert list(result.failed) == [2]
    assert seen == [[]] * (wanted.max_attempts + 1)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_what_is_in_flight(fake: FakeServer, parameters: Any) -> None:
    """One worker, one slow request: its line must be in the journal when the job ends."""
    in_flight = threading.Event()

    def slowly(rid: str, *_: Any) -> None:
        if rid.startswith("hs-0-"):
            in_flight.set()
            time.sleep(1.5)

    fake.misbehave = slowly

    def interrupt() -> None:
        in_flight.wait()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = run(parameters(concurrency=1, samples_per_request=1))
    assert result.interrupted
    assert list(Store(parameters().store_path).entries) == [0]
    with pytest.raises(JobError, match="have no outcome: the job was interrupted"):
        result.require_whole()


def test_other_peoples_directories_in_the_dump_directory_stay(
    fake: FakeServer, parameters: Any
) -> None:
    for name in ("hs-corpus", "my-store"):
        (fake.dumps / name).mkdir()
        (fake.dumps / name / "train.jsonl").write_text("x")
    fake.dump("hs-3-13-0123456789abcdef-1", SAMPLES[3].input_ids)
    assert run(parameters()).is_whole
    assert sorted(p.name for p in fake.dumps.iterdir() if p.is_dir()) == ["hs-corpus", "my-store"]


def test_rows_that_are_stored_and_rejected_now_are_refused(parameters: Any, tmp_path: Path) -> None:
    run(parameters())
    path = tmp_path / "rows.jsonl"
    wanted = parameters(max_rejected_share=0.2)
    lines = path.read_text().splitlines()
    lines[5] = '{"input_ids": []}'
    path.write_text("\n".join(lines[:9]))
    with pytest.raises(DatasetError, match="4 are rejected or gone") as caught:
        run(wanted)
    assert caught.value.fields["indices"] == [5, 9, 10, 11]


def test_a_full_disk_stops_the_job_and_what_was_committed_stays(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    written = 0

    def full(fd: int, data: Any, offset: int) -> int:
        nonlocal written
        if len(data) > 4000 and "samples" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            written += 1
            if written > 5:
                raise OSError(28, "No space left on device")
        return write(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr("hslib.files.write.os.pwrite", full)
        with pytest.raises(StoreError, match="a sample's file can't be written: No space left"):
            run(parameters())
    store = Store(parameters().store_path)
    assert len(store) == 5
    assert store.verify(deep=True).clean
    assert not list(parameters().store_path.rglob("*.tmp"))
    assert run(parameters()).totals.already_done == 5
    assert_store_is_right(parameters().store_path)


def test_a_dump_directory_that_is_removed_is_named_at_once_and_the_job_goes_on_later(
    fake: FakeServer, parameters: Any
) -> None:
    """As systemd-logind does at logout; the rows in flight are not to blame."""
    removed_at: list[float] = []
    wanted = parameters(concurrency=2, samples_per_request=1, server_wait_s=30.0)
    port = int(fake.url.rsplit(":", 1)[1])

    def misbehave(rid: str, *_: Any) -> int | None:
        if "-999999999-" in rid or removed_at:
            return None
        if rid.startswith("hs-5-"):
            shutil.rmtree(fake.dumps)
            removed_at.append(time.monotonic())
            time.sleep(6)  # a long row: the server is silent meanwhile
            return NO_DUMP
        return None

    def restart() -> None:
        log = wanted.run_path / "extraction.log"
        while not (removed_at and re.search(r"was (removed|emptied) while", log.read_text())):
            time.sleep(0.05)
        removed_at.append(time.monotonic())
        fake.stop()
        fake.start(port)

    fake.misbehave = misbehave
    threading.Thread(target=restart, daemon=True).start()
    result = run(wanted)
    assert result.is_whole
    assert removed_at[1] - removed_at[0] < 5
    assert "enable-linger" in (wanted.run_path / "extraction.log").read_text()
    assert_store_is_right(wanted.store_path)


def test_a_try_that_is_due_while_its_server_is_away_keeps_no_core_busy(
    fake: FakeServer, parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is to be tried again when another's request is dropped and the server goes."""
    from hslib.job.tasks import Tasks

    turns = 0
    take = Tasks.take

    def counting(tasks: Tasks, timeout_s: float) -> None:
        nonlocal turns
        turns += 1
        take(tasks, timeout_s)

    monkeypatch.setattr(Tasks, "take", counting)
    fake.misbehave = once(2, 500)
    gone = goes_away(fake, 3, away_s=3.0)
    assert run(parameters(concurrency=1, samples_per_request=1)).is_whole
    assert gone.is_set()
    assert turns < 120


@pytest.mark.parametrize("form", FORMS)
def test_a_store_goes_on_from_the_same_rows_in_another_form(
    parameters: Any, tmp_path: Path, form: Callable[..., str]
) -> None:
    run(parameters(limit=5))
    as_file = parameters()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    (tmp_path / "other").mkdir()
    wanted = as_file.model_copy(update={"dataset_path": form(tmp_path / "other", rows)})
    assert prepare(wanted).manifest.dataset_digest == prepare(as_file).manifest.dataset_digest
    result = run(wanted)
    assert (result.totals.already_done, result.totals.ok) == (5, 7)
    assert_store_is_right(wanted.store_path)
    assert run(as_file).totals.already_done == 12


def test_a_job_says_what_it_rejects_and_where_its_masks_are_from(
    parameters: Any, tmp_path: Path
) -> None:
    wanted = parameters(max_rejected_share=1.0)
    rows = [
        {"input_ids": [5, 6], "labels": [-100, 6]},
        {"input_ids": [5, 6], "prompt_mask": [1, 0]},
        {"input_ids": [5, 6]},
        {"input_ids": [5, 6], "attention_mask": [0, 1]},
        {"input_ids": [5, 6], "images": ["x.jpg"]},
        {"input_ids": [5, 6], "images": ["y.jpg"]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    servers = open_endpoints(wanted)
    job = extract.prepare(wanted, servers)
    assert job.facts()["rejected"] == "3 (2 media, 1 padded)"
    assert job.facts()["masks are from"] == (
        "NO MASK: 1 rows, every token trains; labels: 1 rows; "
        "prompt_mask: 1 rows (1 = the prompt, not trained)"
    )
    assert "3 (2 media, 1 padded) rejected." in extract.run(job, servers).sentence()
    masks = [sample.loss_mask.tolist() for sample in Store(wanted.store_path)]
    assert masks == [[0, 1], [0, 1], [1, 1]]


def test_a_shard_of_rejected_rows_alone_comes_to_its_end(parameters: Any, tmp_path: Path) -> None:
    wanted = parameters(max_rejected_share=0.5, num_shards=2, shard_index=1)
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [5, 6]}\n{"input_ids": []}\n')
    result = run(wanted)
    assert result.is_whole and "1 (1 empty) rejected" in result.sentence()
    store = Store(wanted.store_path)
    assert store.verify(deep=True).clean
    assert store.witness() is not None and store.witness_sentence()
    lengths = pandas.DataFrame({"num_tokens": [e.num_tokens for e in store.entries.values()]})
    assert plot_lengths(lengths, "none").axes


def test_rows_that_are_all_rejected_end_the_job_with_the_first_ones_reason(
    parameters: Any, tmp_path: Path
) -> None:
    wanted = parameters()
    (tmp_path / "rows.jsonl").write_text('{"tokens": [1, 2]}\n{"tokens": [3]}\n')
    with pytest.raises(
        DatasetError, match="2 of 2 rows are rejected, and none is left: 2 no_ids; the first: row 0"
    ):
        run(wanted)


def test_a_fault_of_one_row_costs_no_other_of_its_request_a_try(
    fake: FakeServer, parameters: Any
) -> None:
    fake.misbehave = lambda rid, *_: 500 if rid.startswith("hs-7-") else None
    result = run(parameters(max_attempts=1))
    assert list(result.failed) == [7]
    assert_store_is_right(parameters().store_path, [s.index for s in SAMPLES if s.index != 7])


def test_an_answered_row_is_not_to_blame_for_a_server_that_is_started_again(
    fake: FakeServer, parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thrice its server is another process when its complete dump is validated."""
    restarts: list[int] = []
    validate = Endpoint.validate

    def restarted(endpoint: Endpoint, dump: Any, sample: Any) -> Any:
        if sample.index == 5 and len(restarts) < 3:
            restarts.append(sample.index)
            plugin = json.loads((fake.dumps / "plugin.json").read_text())
            write_plugin_json(fake.dumps, plugin)
        return validate(endpoint, dump, sample)

    monkeypatch.setattr(Endpoint, "validate", restarted)
    assert run(parameters(max_attempts=1, concurrency=1, samples_per_request=1)).is_whole
    assert len(restarts) == 3
    assert_store_is_right(parameters().store_path)


@pytest.mark.parametrize("change", ["mask", "id", "rejected", "cut"])
def test_a_row_that_changes_between_plan_and_run_is_named(
    parameters: Any, tmp_path: Path, change: str
) -> None:
    wanted = parameters()
    servers = open_endpoints(wanted)
    job = extract.prepare(wanted, servers)
    path = tmp_path / "rows.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if change == "mask":
        lines[5]["loss_mask"] = [1 - bit for bit in lines[5]["loss_mask"]]
    elif change == "id":
        lines[5]["id"] = "another"
    elif change == "rejected":
        lines[5]["input_ids"] = []
    else:
        del lines[5:]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(DatasetError, match=r"row 5.* while the job ran"):
        extract.run(job, servers)
    assert 5 not in Store(wanted.store_path).entries


def test_a_removed_dump_directory_is_named_while_another_server_is_busy(
    fake: FakeServer, second: FakeServer, parameters: Any
) -> None:
    """Something ends all the time, and the server whose directory went is silent."""
    removed_at: list[float] = []
    named_after_s: list[float] = []
    wanted = parameters(**(both(fake, second) | {"concurrency": 1}), server_wait_s=1.0)
    log = wanted.run_path / "extraction.log"

    def remove(rid: str, *_: Any) -> int | None:
        if "-999999999-" in rid or removed_at:
            return None
        removed_at.append(time.monotonic())
        shutil.rmtree(second.dumps)
        while time.monotonic() - removed_at[0] < 5:
            if "was removed while the job runs" in log.read_text():
                named_after_s.append(time.monotonic() - removed_at[0])
                break
            time.sleep(0.05)
        return NO_DUMP

    second.misbehave = remove
    fake.misbehave = lambda *_: time.sleep(0.5)
    assert run(wanted).is_whole
    assert len(named_after_s) == 1, "not within five seconds"
    assert_store_is_right(wanted.store_path)
