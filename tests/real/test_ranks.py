"""Several ranks for real: two on the CPU share a model's matrices and sum over gloo."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from make.dumps import BOUNDARIES
from make.jobs import run
from make.reference import CHUNK
from make.rows import random_sample
from make.waits import wait_until
from real.running import NOTEBOOK, journal_lines, parameters_for, start_job, stored
from real.served import (
    EXPECTED,
    Served,
    assert_demo_is_reference,
    assert_is_reference,
    assert_is_the_models,
)
from real.servers import end_server
from real.warm import WarmServers

from hslib.errors import DumpError, ServerError
from hslib.job.progress import read_progress
from hslib.server import launch as server
from hslib.server import preflight, processes
from hslib.server.dumps import Dump, DumpDir
from hslib.server.validate import validate
from hslib.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # two servers, one after the other

SEAMS = {  # by family: dense, a mixture of experts, MLA; and what has no stages
    "qwen3": "stage",
    "qwen3_moe": "stage",
    "deepseek_v3": "stage",
    "gemma3": "sum",
}
REQUESTS = {
    "alone": [random_sample(0, 50)],
    "batch": [random_sample(10 + i, n) for i, n in enumerate((17, 9, 17, 1, 30, 17, 9))],
    "chunked": [random_sample(20, 200)],
}
StartServer = Callable[..., server.ServerState]


def schedulers_of(state: server.ServerState) -> dict[str, int]:
    """The process of each rank, by SGLang's name for it."""
    found = {process.name(): process.pid for process in processes.members(state)}
    return {name.split("_", 1)[1]: pid for name, pid in found.items() if "scheduler_" in name}


# --- a rank's own part of a sum ------------------------------------------------------------

PARTIAL_SUMS = '''
"""A fault: what a layer is given is captured as this rank's part of it, not as the sum."""
import sys


def register():
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.layers.layer_boundary.stage import StageBoundary

    prepare = StageBoundary.prepare

    def faulty(self, hidden_states, forward_batch, **call):
        stream, capture = forward_batch.residual_stream, call.get("capture")
        if capture is not None and stream.pending is not None and stream.pending.owed is not None:
            own = stream.pending.value + stream.residual
            call["capture"] = lambda value, owned=False: capture(own, owned=True)
        return prepare(self, hidden_states, forward_batch, **call)

    StageBoundary.prepare = faulty
'''


def test_a_rank_that_captured_its_own_part_of_a_sum_would_be_noticed(
    model_of: Callable[[str], Path],
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: two ranks on a CPU do put a sum off until a layer's entrance."""
    plugin_on_path(tmp_path, "partial_sums", PARTIAL_SUMS, monkeypatch)
    refusal = ""
    try:
        state = start_server(model_of("qwen3"), tp_size=2)
    except ServerError as error:
        refusal = str(error)
    if refusal:
        assert "boundary" in refusal, "by what the layers read, not for another reason"
        return
    sample = random_sample(50, 50)
    with server.client_of(state) as client:
        served = Served(model_of("qwen3"), client, DumpDir(state.dump_dir))
        (dump,) = served.dump([sample])
    end_server(state)
    with pytest.raises(AssertionError, match="boundary 1"):
        assert_is_reference(served.model, sample, dump)


def plugin_on_path(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SGLang load one more plugin, as an installed package brings it."""
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {name}:register\n")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), before])))


# --- a rank dies --------------------------------------------------------------------------


def test_a_rank_killed_in_the_middle_ends_the_job_which_a_resume_on_one_rank_completes(
    model_of: Callable[[str], Path], start_server: StartServer, warm: WarmServers, tmp_path: Path
) -> None:
    state = start_server(model_of("qwen3"), tp_size=2)
    wanted = parameters_for(state, model_of("qwen3"), tmp_path, 160, server_wait_s=1.0)
    job = start_job(wanted)
    wait_until("some rows", lambda: stored(wanted.run_path) > 20)
    os.kill(schedulers_of(state)["TP1"], signal.SIGKILL)
    assert job.wait(120) != 0
    wait_until("the end of the other ranks", lambda: processes.members(state) == [])
    progress = read_progress(wanted.run_path)
    assert progress is not None
    assert (progress.state, progress.failed) == ("failed", 0)
    assert 20 < progress.ok < 160
    store = Store(wanted.store_path)
    assert store.verify(deep=True).clean
    assert journal_lines(wanted) == len(store) == progress.ok, "what is committed stays"
    committed = {index: entry.entry for index, entry in store.entries.items()}

    again = wanted.model_copy(update={"server_url": "", "tp_size": 1})  # starts its own
    with mock.patch.object(server, "spawn", warm.spawn):
        result = run(again)
    assert (result.totals.already_done, result.totals.ok) == (progress.ok, 160 - progress.ok)
    store = Store(wanted.store_path)
    assert store.manifest.server["tp_size"] == 2, "as it was begun"
    entries = store.entries
    assert committed == {index: entries[index].entry for index in committed}
    assert_is_the_models(again, every=13)


# --- the demo, and replicas of two ranks --------------------------------------------------


def test_the_demo_job_with_two_ranks(warm: WarmServers, tmp_path: Path) -> None:
    papermill = str(Path(sys.executable).with_name("papermill"))
    command = [papermill, str(NOTEBOOK), str(tmp_path / "out.ipynb"), "--cwd", str(tmp_path)]
    command += ["-p", "run_dir", str(tmp_path / "run"), "-p", "tp_size", "2", "-p", "limit", "128"]
    job = subprocess.Popen(
        command,
        env={**os.environ, **warm.for_kernels()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until("the job's server", lambda: server.read_state(tmp_path / "run") is not None)
    state = server.read_state(tmp_path / "run")
    assert state is not None
    _, said = job.communicate()
    assert job.returncode == 0, said[-3000:]
    assert processes.members(state) == []
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert (metrics["ok"], metrics["failed"]) == (128, 0)
    store = Store(tmp_path / "run/store")
    assert store.manifest.server["tp_size"] == 2
    assert store.verify(deep=True).clean
    assert len(store) == 128
    assert_demo_is_reference(store)


def test_two_replicas_of_two_ranks_each_write_what_is_theirs(
    model_of: Callable[[str], Path], start_server: StartServer, tmp_path: Path
) -> None:
    state = start_server(model_of("llama"), tp_size=2, dp_size=2)
    schedulers = schedulers_of(state)
    assert len(schedulers) == 4
    wanted = parameters_for(state, model_of("llama"), tmp_path, 40)
    assert run(wanted).is_whole
    names = {path.name for path in Path(state.dump_dir).iterdir() if "plugin" in path.name}
    end_server(state)
    assert_is_the_models(wanted, every=5)
    assert names == {"plugin.json", "plugin.dp1.json"}
    log = Path(state.log).read_text()
    assert all(log.count(f"DP{rank} TP0] Prefill batch") > 3 for rank in range(2))


def test_a_server_with_attention_data_parallelism_says_why_it_ends(
    model_of: Callable[[str], Path], start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that somebody starts by hand, past preflight: the first rank that ends is heard."""
    monkeypatch.delitem(preflight._REFUSED, "--attn-dp-size")
    with pytest.raises(ServerError, match="died while starting") as caught:
        start_server(model_of("qwen3"), tp_size=2, extra_args=["--attn-dp-size", "2"])
    assert "attention data parallelism" in caught.value.fix


# --- the states of two ranks; last, as their servers live until the module ends --------------


class Ranks(NamedTuple):
    family: str
    two: Served
    state: server.ServerState
    of_one: dict[int, torch.Tensor]  # what a server of one rank dumped, by the row's index


def states_of(dump: Dump) -> torch.Tensor:
    """float32 [T, L, H]"""
    return torch.from_numpy(np.array(dump.hidden_states)).view(torch.bfloat16).float()


@pytest.fixture(scope="module", params=SEAMS)
def ranks(
    request: pytest.FixtureRequest, model_of: Callable[[str], Path], start_server: StartServer
) -> Iterator[Ranks]:
    """Two ranks, after one rank was asked for the same rows; one server at a time."""
    model, of_one = model_of(request.param), {}
    alone = start_server(model, chunked_prefill_size=CHUNK)
    with server.client_of(alone) as client:
        served = Served(model, client, DumpDir(alone.dump_dir))
        for samples in REQUESTS.values():
            for sample, dump in zip(samples, served.dump(samples), strict=True):
                of_one[sample.index] = states_of(dump)
    end_server(alone)
    state = start_server(model, chunked_prefill_size=CHUNK, tp_size=2)
    with server.client_of(state) as client:
        yield Ranks(request.param, Served(model, client, DumpDir(state.dump_dir)), state, of_one)
    end_server(state)


@pytest.mark.parametrize("how", REQUESTS)
def test_states_are_the_reference_and_those_of_one_rank(ranks: Ranks, how: str) -> None:
    dumps = ranks.two.dump(REQUESTS[how], attempt=2)
    assert (len(dumps[0].meta.chunks) > 1) == (how == "chunked")
    for sample, dump in zip(REQUESTS[how], dumps, strict=True):
        assert_is_reference(ranks.two.model, sample, dump)
        of_one, of_two = ranks.of_one[sample.index], states_of(dump)
        for number in range(len(BOUNDARIES) + 1):
            apart = (of_two[:, number] - of_one[:, number]).norm() / of_one[:, number].norm()
            assert float(apart) < 0.03, f"state {number}: {apart:.4f}"  # as far as each may be off


def test_one_rank_writes_for_both(ranks: Ranks) -> None:
    sample = random_sample(30, 33)
    (dump,) = ranks.two.dump([sample])
    schedulers = schedulers_of(ranks.state)
    assert set(schedulers) == {"TP0", "TP1"}
    plugin = ranks.two.dumps.plugin()
    assert plugin is not None
    assert plugin.pid == dump.meta.pid == schedulers["TP0"]
    assert plugin.replicas == 1
    assert [c.seam for c in plugin.capture] == [SEAMS[ranks.family]] * len(BOUNDARIES) + ["norm"]
    ranks.two.dumps.clear(ranks.two.dumps.names())
    assert [path.name for path in Path(ranks.state.dump_dir).iterdir()] == ["plugin.json"]


def test_a_neighbours_states_are_refused(ranks: Ranks) -> None:
    """Negative control: same length, other row."""
    mine, other = random_sample(40, 25), random_sample(41, 25)
    dump, _ = ranks.two.dump([mine, other])
    with pytest.raises(DumpError, match="input_ids at 0"):
        validate(dump, other, EXPECTED)
    with pytest.raises(AssertionError, match="boundary 1"):
        assert_is_reference(ranks.two.model, other, dump)
