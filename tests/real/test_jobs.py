"""Long tests on real servers: the demo job with its resumes, data parallelism, kills."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.server import FakeServer, states_of
from make import jobs
from make.dumps import BOUNDARIES
from make.jobs import run
from make.reference import reference_states, relative_errors
from make.rows import random_sample, write_rows
from make.waits import wait_until
from real.running import journal_lines
from real.served import assert_demo_is_reference
from real.servers import end_server

from hslib import demo
from hslib.parameters import ExtractionParameters, ServerParameters
from hslib.server import command_line, preflight
from hslib.server import launch as server
from hslib.server.client import ServerClient
from hslib.server.dumps import DumpDir
from hslib.server.endpoints import open_endpoints
from hslib.store import Store

pytestmark = pytest.mark.slow


# --- the demo -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_server(start_server: Callable[..., server.ServerState]) -> Iterator[server.ServerState]:
    state = start_server(demo.model_path(), layers="auto")
    yield state
    end_server(state)


def test_the_demo_job_and_its_resumes(
    demo_server: server.ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = ServerClient.prefill

    def spy(client: ServerClient, rows: Any, rids: Any = None, *more: Any) -> None:
        sent.extend(rid for rid in rids if not rid.startswith("hs-999999999-"))
        send(client, rows, rids, *more)

    monkeypatch.setattr(ServerClient, "prefill", spy)
    values = {
        "run_dir": str(tmp_path),
        "server_url": demo_server.url,
        "dump_dir": demo_server.dump_dir,
        "model_path": str(demo.model_path()),
    }
    wanted = ExtractionParameters.from_values(values)
    first = run(wanted)
    assert (first.totals.asked, first.totals.ok) == (256, 256)
    assert Store(wanted.store_path).verify(deep=True).clean
    assert len(sent) == 256
    sent.clear()
    assert run(wanted).totals.already_done == 256
    assert sent == []
    folder = wanted.store_path / "samples/00000"
    (folder / "00000017.safetensors").unlink()
    flipped = folder / "00000100.safetensors"
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 0xFF
    flipped.write_bytes(data)
    third = run(ExtractionParameters.from_values({**values, "resume_check": "deep"}))
    assert sorted(rid.split("-")[1] for rid in sent) == ["100", "17"]
    assert (third.totals.ok, third.totals.already_done) == (2, 254)
    assert Store(wanted.store_path).verify(deep=True).clean
    assert_demo_is_reference(Store(wanted.store_path))


# --- a server that somebody else starts -----------------------------------------------------


def test_a_server_started_by_hand_needs_the_plugin_and_its_environment_and_no_flag(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    values = {"run_dir": str(tmp_path), "model_path": str(model_of("llama")), "layers": "1,5"}
    plan = preflight.require(ServerParameters.from_values(values))
    needed = ("--disable-radix-cache", "--disable-prefill-cuda-graph")
    command = [part for part in command_line.command(plan) if part not in needed]
    pid = server.spawn(command, command_line.environment(plan), tmp_path / "log")
    try:
        url = f"http://127.0.0.1:{plan.port}"
        with ServerClient(url) as client:
            deadline = time.monotonic() + 300
            while not client.is_up():
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.5)
        named = {"server_url": url, "dump_dir": str(plan.parameters.dump_path)}
        fleet = open_endpoints(ExtractionParameters.from_values({**values, **named}))
        assert fleet.check.settings.disable_radix_cache
        assert fleet.check.plugin.unwitnessed == {}
        assert [state.seam for state in fleet.check.plugin.capture] == ["stage", "stage", "norm"]
    finally:
        os.killpg(pid, signal.SIGKILL)


# --- data parallelism ---------------------------------------------------------------------


def test_two_replicas_share_a_dump_directory_and_every_row_is_right(
    start_server: Callable[..., server.ServerState],
    model_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    state = start_server(model_of("llama"), dp_size=2)
    try:
        samples = [random_sample(i, 5 + i % 40, seed=21) for i in range(60)]
        wanted = ExtractionParameters.from_values(
            {
                "run_dir": str(tmp_path),
                "server_url": state.url,
                "dump_dir": state.dump_dir,
                "model_path": str(model_of("llama")),
                "layers": "1,3,5",
                "dataset_path": str(write_rows(tmp_path / "rows.jsonl", samples)),
                "samples_per_request": 1,
            }
        )
        assert (Path(state.dump_dir) / "plugin.dp1.json").exists()
        assert run(wanted).is_whole
        store = Store(wanted.store_path)
        assert store.verify(deep=True).clean
        for sample in samples[::7]:
            references = reference_states(model_of("llama"), sample.input_ids)
            for boundary in BOUNDARIES:
                errors = relative_errors(store[sample.index].layer(boundary), references)
                assert errors[boundary] < 0.03
        log = Path(state.log).read_text()
        assert all(log.count(f"DP{rank}") > 3 for rank in range(2)), "both replicas must work"
    finally:
        end_server(state)


# --- kill -9 ------------------------------------------------------------------------------


def kill_jobs(wanted: ExtractionParameters, num_samples: int, kills: int) -> None:
    """SIGKILL real jobs at random instants; the store must be sound after each, and grow."""
    rng, committed = random.Random(4), {}
    for _ in range(kills):
        job = jobs.start(wanted, stdout=subprocess.PIPE)
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.0, 0.3))
        job.send_signal(signal.SIGKILL)
        job.wait()
        store = Store(wanted.store_path)
        assert store.verify(deep=True).clean
        assert committed.items() <= {i: e.entry for i, e in store.entries.items()}.items(), (
            "what was committed must stay, and must not be done twice"
        )
        committed = {i: e.entry for i, e in store.entries.items()}
        if len(store) == num_samples:  # nothing left to kill: take most of it away
            for entry in list(store.entries.values()):
                if rng.random() < 0.8:
                    (store.path / entry.file).unlink()
                    del committed[entry.index]
            store.repair(store.verify())  # else a kill before the next job does it would show


def assert_same_tensors(first: Store, second: Store) -> None:
    """Byte for byte, every tensor of every sample."""
    assert list(first.entries) == list(second.entries)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.hidden_states, other.hidden_states)
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.loss_mask, other.loss_mask)


def test_a_job_killed_at_any_instant_loses_and_repeats_nothing(
    llama_server: server.ServerState, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """On a real server, one row a forward: then an undisturbed run gives the same bits."""
    rng = random.Random(3)
    samples = [random_sample(i, rng.randint(1, 60), seed=31) for i in range(200)]
    wanted = ExtractionParameters.from_values(
        {
            "run_dir": str(tmp_path / "run"),
            "server_url": llama_server.url,
            "dump_dir": llama_server.dump_dir,
            "model_path": str(model_of("llama")),
            "layers": "1,3,5",
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", samples)),
            "concurrency": 1,
            "samples_per_request": 1,
        }
    )
    kill_jobs(wanted, len(samples), kills=12)
    assert run(wanted).is_whole
    store = Store(wanted.store_path)
    assert store.verify(deep=True).clean
    assert [n for n in DumpDir(wanted.dump_paths[0]).names() if n.startswith("hs-")] == []
    undisturbed = wanted.model_copy(update={"run_dir": str(tmp_path / "undisturbed")})
    assert run(undisturbed).is_whole
    assert_same_tensors(store, Store(undisturbed.store_path))
    for sample in samples[::37]:
        references = reference_states(model_of("llama"), sample.input_ids)
        assert relative_errors(store[sample.index].layer(3), references)[3] < 0.03


def test_kills_among_many_requests_in_flight_lose_and_repeat_nothing(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Sixteen in flight, compressed, writes finishing out of order; a hand-made server's states."""
    samples = [random_sample(i, 1 + i % 50, seed=61) for i in range(400)]
    fake = FakeServer(tmp_path / "dumps", model_of("llama"))
    wanted = ExtractionParameters.from_values(
        {
            "run_dir": str(tmp_path / "run"),
            "server_url": fake.url,
            "dump_dir": str(fake.dumps),
            "model_path": str(model_of("llama")),
            "layers": "1,3,5",
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", samples)),
            "concurrency": 16,
            "samples_per_request": 2,
            "encoding": "lossless",
        }
    )
    try:
        kill_jobs(wanted, len(samples), kills=12)
        assert run(wanted).is_whole
    finally:
        fake.stop()
    store = Store(wanted.store_path)
    assert list(store.entries) == [s.index for s in samples]
    assert store.verify(deep=True).clean
    for stored in store:
        assert torch.equal(stored.hidden_states, states_of(stored.input_ids.numpy()))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_finishes_what_is_in_flight_and_leaves_a_store_to_resume(
    llama_server: server.ServerState, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    samples = [random_sample(i, 40, seed=41) for i in range(600)]
    wanted = ExtractionParameters.from_values(
        {
            "run_dir": str(tmp_path / "run"),
            "server_url": llama_server.url,
            "dump_dir": llama_server.dump_dir,
            "model_path": str(model_of("llama")),
            "layers": "1,3,5",
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", samples)),
        }
    )
    job = jobs.start(wanted, stdout=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"ready\n"
    wait_until("some rows", lambda: journal_lines(wanted) > 20)
    job.send_signal(signal.SIGINT)
    assert job.stdout.readline() == b"ended in order\n"
    assert job.wait(30) == 0
    store = Store(wanted.store_path)
    assert 0 < len(store) < len(samples)
    assert store.verify(deep=True).clean
    assert "interrupted" in (wanted.run_path / "progress.json").read_text()
    assert run(wanted).totals.already_done == len(store)
    assert len(Store(wanted.store_path)) == len(samples)


def test_states_have_no_bits_of_their_own(llama_server: server.ServerState) -> None:
    """The same row twice, alone each time, gives the same bits: nothing stale, nothing random."""
    sample = random_sample(1, 50, seed=51)
    dumps = DumpDir(llama_server.dump_dir)
    found = []
    with server.client_of(llama_server) as client:
        for attempt in (1, 2):
            rid = f"hs-1-50-{sample.digest[:16]}-{attempt}"
            client.prefill([sample.input_ids], [rid])
            dumps.wait(rid, 10)
            found.append(torch.from_numpy(np.array(dumps.load(rid).hidden_states)))
            dumps.remove(rid)
    assert torch.equal(found[0], found[1])
