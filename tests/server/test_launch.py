"""Starting, proving and stopping servers: what is in the way is said before, or at once."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
from make.rows import random_sample
from real.servers import end_server, writers_of
from real.warm import WarmServers

from hslib.errors import DumpError, ParameterError, RequestError, ServerError
from hslib.parameters import ExtractionParameters, ServerParameters
from hslib.server import command_line, preflight, processes
from hslib.server import launch as server
from hslib.server.check import check_server
from hslib.server.client import ServerClient
from hslib.server.dumps import DumpDir, request_id
from hslib.server.endpoints import open_endpoints


@pytest.fixture
def parameters(tmp_path: Path, model_of: Callable[[str], Path]) -> Callable[..., ServerParameters]:
    def make(**values: Any) -> ServerParameters:
        defaults = {
            "run_dir": str(tmp_path / "run"),
            "model_path": str(model_of("llama")),
            "layers": "1,3,5",
            "dump_dir": str(tmp_path / "dumps"),
        }
        return ServerParameters.from_values({**defaults, **values})

    return make


def problems_of(parameters: ServerParameters) -> str:
    plan, problems = preflight.preflight(parameters)
    assert plan is None
    assert all(problem.fix for problem in problems)
    return "\n".join(map(str, problems))


# --- before anything starts ---------------------------------------------------------------


def test_with_nothing_in_the_way_there_is_a_plan(parameters: Any) -> None:
    plan, problems = preflight.preflight(parameters())
    assert problems == []
    assert plan is not None
    assert plan.boundaries == (1, 3, 5)
    assert preflight.facts(plan, problems)["bytes per token"] == "512", "4 x 64 x 2"


def test_a_taken_port_names_the_process_that_holds_it(parameters: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = problems_of(parameters(port=taken.getsockname()[1]))
    assert f"process {os.getpid()}" in text
    assert "port = 0" in text


def test_an_interpreter_without_sglang_is_named(parameters: Any, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    text = problems_of(parameters(python=str(bare / "bin/python")))
    assert f"no sglang in {bare}/bin/python" in text


def test_an_interpreter_that_is_not_there_is_named(parameters: Any) -> None:
    assert "/no/such/python does not run" in problems_of(parameters(python="/no/such/python"))


def test_a_model_folder_without_weights_is_a_problem(parameters: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no config.json" in problems_of(parameters(model_path=str(tmp_path / "empty")))


def test_a_plugin_that_the_environment_keeps_out_is_a_problem(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "none")
    assert "SGLANG_PLUGINS='none' keeps the hs_dump plugin out" in problems_of(parameters())


def test_a_dump_directory_that_is_a_link_or_not_writable_is_a_problem(
    parameters: Any, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert "is a link" in problems_of(parameters(dump_dir=str(tmp_path / "link")))
    assert "dump directory" in problems_of(parameters(dump_dir="/proc/nothing"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_dump_directory_of_another_user_is_a_problem(parameters: Any, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)
    text = problems_of(parameters(dump_dir=str(tmp_path / "theirs")))
    assert "belongs to user 12345" in text


def test_a_dump_directory_too_small_for_the_longest_rows_is_a_problem(parameters: Any) -> None:
    text = problems_of(parameters(dump_budget_gb=0.001, dumps_at_once=8))
    assert "8 dumps of 2048 tokens" in text
    preflight.require(parameters(dump_budget_gb=0.001, dumps_at_once=8, longest_sample=100))


def test_a_key_on_the_command_line_is_a_problem(parameters: Any) -> None:
    assert "extra_args" in problems_of(parameters(extra_args=["--api-key=x"]))


@pytest.mark.parametrize(
    "extra_args",
    [
        ["--attn-dp-size", "2"],
        ["--enable-dp-attention"],
        ["--pp-size=2"],
        ["--enable-layernorm-sp"],
    ],
)
def test_what_would_split_the_states_over_ranks_is_a_problem(
    parameters: Any, extra_args: list[str]
) -> None:
    flag = extra_args[0].partition("=")[0]
    assert f"{flag} in extra_args splits the states" in problems_of(
        parameters(extra_args=extra_args)
    )


def test_ranks_are_set_by_parameters_not_by_extra_args(parameters: Any) -> None:
    assert "set tp_size instead" in problems_of(parameters(extra_args=["--tp", "2"]))
    assert "set dp_size instead" in problems_of(parameters(extra_args=["--dp-size=2"]))


def test_more_ranks_than_gpus_are_a_problem_and_on_a_cpu_none(parameters: Any) -> None:
    wanted, problems = parameters(tp_size=2, dp_size=2), preflight.Problems()
    for devices in (0, 4, 2):
        interpreter = preflight.Interpreter("python", "0.5.23", "1.0.0", devices)
        assert problems == []
        preflight._check_ranks(wanted, interpreter, problems)
    assert "takes 4 GPUs; 2 can be seen here" in str(problems[0])


def test_all_problems_are_told_at_once(parameters: Any, tmp_path: Path) -> None:
    with pytest.raises(ServerError) as caught:
        server.start(parameters(model_path=str(tmp_path / "no"), dump_dir="/proc/nothing"))
    assert "no is missing" in str(caught.value)
    assert "dump directory" in str(caught.value)


def test_the_command_fixes_what_capture_depends_on(parameters: Any) -> None:
    plan = preflight.require(parameters(context_length=8192, extra_args=["--seed", "1"]))
    command = " ".join(command_line.command(plan))
    assert "--disable-radix-cache" in command
    assert "--disable-prefill-cuda-graph" in command
    assert "EAGLE3" not in command
    assert command.endswith("--seed 1")
    environment = command_line.environment(plan)
    assert environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    assert environment["SGLANG_HS_DUMP_BOUNDARIES"] == "1,3,5"
    assert environment["SGLANG_HS_DUMP_FINAL"] == "1"
    plan = preflight.require(parameters(layers="-1", store_final=False, accept_unwitnessed=True))
    environment = command_line.environment(plan)
    assert environment["SGLANG_HS_DUMP_BOUNDARIES"] == "6"
    assert environment["SGLANG_HS_DUMP_FINAL"] == "0"
    assert environment["SGLANG_HS_DUMP_ACCEPT_UNWITNESSED"] == "1"
    assert preflight.facts(plan, [])["bytes per token"] == "128"


def test_nothing_to_capture_is_a_problem(parameters: Any) -> None:
    assert "nothing would be captured" in problems_of(parameters(layers="none", store_final=False))
    plan = preflight.require(parameters(layers="none"))
    assert plan.boundaries == ()
    assert preflight.facts(plan, [])["bytes per token"] == "128", "the final state alone"


def test_a_graph_that_would_be_replayed_past_the_hooks_is_a_problem(parameters: Any) -> None:
    text = problems_of(parameters(extra_args=["--cuda-graph-backend-prefill=full"]))
    assert "past the plugin's hooks" in text


def test_ranks_on_a_cpu_have_a_core_each_and_no_nccl(
    parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {5, 3, 4})
    for name in ("SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_NCCL_SO_PATH", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    plan = preflight.require(parameters(tp_size=2, dp_size=2))
    on_cpu = replace(plan, interpreter=replace(plan.interpreter, cuda_devices=0))
    found = command_line.environment(on_cpu)
    assert found["SGLANG_CPU_OMP_THREADS_BIND"] == "3|4|5|3", "one for each rank, or it won't start"
    assert found["OMP_NUM_THREADS"] == "1"
    assert not Path(found["SGLANG_NCCL_SO_PATH"]).exists()
    on_gpus = replace(plan, interpreter=replace(plan.interpreter, cuda_devices=4))
    alone = replace(on_cpu, parameters=parameters())
    for other in (on_gpus, alone):
        assert not {"SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_NCCL_SO_PATH"} & set(
            command_line.environment(other)
        )


# --- processes that are not SGLang --------------------------------------------------------


def fake_state(process: subprocess.Popen[bytes], mark: str) -> server.ServerState:
    return server.ServerState(
        url="http://127.0.0.1:1",
        pid=process.pid,
        process_mark=mark,
        launched_at=0,
        model_path="m",
        boundaries=(1,),
        dump_dir="d",
        log="l",
        budget_bytes=1,
    )


CHILD = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); print('up', flush=True); time.sleep(300)"  # noqa: E501


@pytest.fixture
def family() -> Any:
    """A process in a group of its own, with a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_stopping_ends_the_whole_group_even_when_its_leader_is_dead(family: Any) -> None:
    state = fake_state(family, processes.process_mark(family.pid))
    assert len(processes.members(state)) == 2
    family.kill()
    family.wait()
    assert not processes.is_alive(state)
    assert len(processes.members(state)) == 1, "the child outlives its parent"
    assert processes.stop_group(state) == 1
    assert processes.members(state) == []


def test_a_process_that_got_the_pid_later_is_never_signalled(family: Any) -> None:
    """The recorded process started earlier: another one has its number now."""
    boot, _, started = processes.process_mark(family.pid).partition(":")
    state = fake_state(family, f"{boot}:{int(started) - 1}")
    assert not processes.is_alive(state)
    assert processes.stop_group(state) == 0
    assert family.poll() is None


def test_a_clock_that_is_set_makes_no_stranger_of_a_process(
    family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psutil's create_time() moves with the clock: a live server would be taken for a dead one."""
    state = fake_state(family, processes.process_mark(family.pid))
    before, booted = psutil.Process(family.pid).create_time(), psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
    assert psutil.Process(family.pid).create_time() > before + 1800
    assert processes.is_alive(state)
    assert len(processes.members(state)) == 2
    assert processes.stop_group(state) == 2


def test_a_run_without_a_server_says_so(tmp_path: Path) -> None:
    assert server.stop(tmp_path) == "this run has no server"
    assert server.status(tmp_path) == {"server": "none in this run"}


# --- real servers -------------------------------------------------------------------------


class Starts(NamedTuple):
    """Three servers started side by side: one that must not come up, two that must not do."""

    incapable: Future[server.ServerState]
    cached: server.ServerState
    plain: server.ServerState


@pytest.fixture(scope="module")
def starts(
    tmp_path_factory: pytest.TempPathFactory, model_of: Callable[[str], Path], warm: WarmServers
) -> Iterator[Starts]:
    llama = model_of("llama")
    root = tmp_path_factory.mktemp("starts")

    def wanted(name: str, model: Path, **values: Any) -> ServerParameters:
        places = {"run_dir": str(root / name), "dump_dir": str(root / f"{name}-dumps")}
        return ServerParameters(model_path=str(model), layers="1,3,5", **places, **values)

    incapable = wanted("incapable", model_of("olmo2"))
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setenv("HSLIB_TEST_KEY", "the-secret-key")
        # these two change what the others would read, so they go first
        cached = launch_with_cache(wanted("cached", llama, api_key_env="HSLIB_TEST_KEY"))
        plain = launch_without_plugin(wanted("plain", llama), warm)
        patch.setattr(server, "spawn", warm.spawn)
        refused = pool.submit(server.start, incapable)
        try:
            for state in (cached, plain):
                server.wait_ready(state, 300)
            yield Starts(refused, cached, plain)
        finally:
            end_server(cached)
            end_server(plain)


def cut_weights(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return folder


def launch_with_cache(parameters: ServerParameters) -> server.ServerState:
    """With the plugin in it, and SGLang's prefix cache left on by a plugin of the tests."""
    plan = preflight.require(parameters)
    command = [part for part in command_line.command(plan) if part != "--disable-radix-cache"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "real" / "planted"))
        patch.setenv("HS_CACHED", "1")
        patch.setattr(server, "command", lambda _plan: command)
        return server.launch(plan)


def launch_without_plugin(parameters: ServerParameters, warm: WarmServers) -> server.ServerState:
    """SGLang answers 200 and dumps nothing."""
    plan = preflight.require(parameters)
    _ = warm.address  # it has the plugin, and so starts before the next line
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_PLUGINS", "none")
        patch.setattr(server, "spawn", warm.spawn)
        return server.launch(plan)


@pytest.mark.slow
def test_a_server_that_dies_while_loading_is_told_with_its_last_lines(
    model_of: Callable[[str], Path],
    warm: WarmServers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "spawn", warm.spawn)
    parameters = ServerParameters(
        run_dir=str(tmp_path / "broken"),
        dump_dir=str(tmp_path / "dumps"),
        model_path=str(cut_weights(model_of("llama"), tmp_path / "model")),
        layers="1,3,5",
    )
    with pytest.raises(ServerError, match="died while starting") as caught:
        server.start(parameters)
    assert "safetensors" in str(caught.value).lower()
    assert writers_of(parameters.run_path / "server.log") == []
    assert not server.state_path(parameters.run_path).exists()


def test_a_model_that_cannot_capture_is_refused_at_start_with_its_class(starts: Starts) -> None:
    with pytest.raises(
        ServerError, match=r"Olmo2ForCausalLM, boundary 1: the layer has no input norm"
    ):
        starts.incapable.result(300)


@pytest.fixture(scope="module")
def cached_server(starts: Starts) -> server.ServerState:
    return starts.cached


def test_a_prefix_cache_that_is_on_is_refused_with_the_flag_that_cures_it(
    cached_server: server.ServerState,
) -> None:
    with pytest.raises(ServerError, match="--disable-radix-cache"):
        server.check_server(cached_server)


def test_a_prefix_cache_hit_makes_an_error_and_never_a_short_dump(
    cached_server: server.ServerState,
) -> None:
    sample = random_sample(0, 100)
    with server.client_of(cached_server) as client:
        client.prefill([sample.input_ids], [request_id(sample, 1)])
        with pytest.raises(RequestError, match="did not prefill all tokens"):
            client.prefill([sample.input_ids], [request_id(sample, 2)])
    with pytest.raises(DumpError, match="prefix-cache hit"):
        DumpDir(cached_server.dump_dir).wait(request_id(sample, 2), 10)


def test_the_api_key_is_needed_and_written_nowhere(cached_server: server.ServerState) -> None:
    with (
        pytest.raises(ServerError, match="refuses the API key"),
        ServerClient(cached_server.url) as client,
    ):
        client.settings()
    run_path = Path(cached_server.log).parent
    files = [*run_path.rglob("*"), *Path(cached_server.dump_dir).rglob("*")]
    for file in files:
        assert not file.is_file() or b"the-secret-key" not in file.read_bytes(), file
    for process in processes.members(cached_server):
        assert "the-secret-key" not in " ".join(process.cmdline())


@pytest.fixture(scope="module")
def plain_server(starts: Starts) -> server.ServerState:
    return starts.plain


def test_a_server_without_the_plugin_answers_200_and_is_refused_all_the_same(
    plain_server: server.ServerState,
) -> None:
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 0}}
    assert httpx.post(f"{plain_server.url}/generate", json=body).status_code == 200
    job = ExtractionParameters(
        server_url=plain_server.url,
        dump_dir=plain_server.dump_dir,
        model_path=plain_server.model_path,
        layers="1,3,5",
    )
    started = time.monotonic()
    with pytest.raises(ServerError, match=r"no plugin\.json[\s\S]*SGLANG_PLUGINS"):
        open_endpoints(job)
    assert time.monotonic() - started < 10


def test_a_leftover_plugin_json_does_not_prove_a_server(
    plain_server: server.ServerState, llama_server: server.ServerState, tmp_path: Path
) -> None:
    leftover = (Path(llama_server.dump_dir) / "plugin.json").read_text()
    (tmp_path / "plugin.json").write_text(leftover)
    with server.client_of(plain_server) as client:
        with pytest.raises(ServerError, match="earlier server"):
            check_server(client, DumpDir(tmp_path), not_before=time.time())
        with pytest.raises(ServerError, match="canary request was not dumped"):
            check_server(client, DumpDir(tmp_path), timeout_s=1.0)


def test_a_second_server_for_a_run_is_refused(llama_server: server.ServerState) -> None:
    run_dir = str(Path(llama_server.log).parent)
    with pytest.raises(ServerError, match="has a server already"):
        server.start(ServerParameters(run_dir=run_dir))


def test_status_tells_how_the_server_stands(llama_server: server.ServerState) -> None:
    facts = server.status(Path(llama_server.log).parent)
    assert (facts["server"], facts["answers"]) == ("running", "yes")
    assert facts["boundaries"] == "1, 3, 5"


def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    named = ExtractionParameters(run_dir=str(tmp_path), server_url="http://127.0.0.1:9")
    with pytest.raises(ServerError, match="no server answers"):
        open_endpoints(named)
    assert time.monotonic() - started < 10


def test_a_key_that_is_named_and_not_set_is_said_before_any_start(parameters: Any) -> None:
    with pytest.raises(ParameterError, match="NO_SUCH_KEY"):
        _ = parameters(api_key_env="NO_SUCH_KEY").api_key
    assert "NO_SUCH_KEY" in problems_of(parameters(api_key_env="NO_SUCH_KEY"))
