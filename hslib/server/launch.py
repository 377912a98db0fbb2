"""Start, watch and stop one SGLang server that captures; its state is ``server.json``.

The server has a process group of its own and outlives the notebook that started it. Only processes
of that group are signalled, and only if its leader is the one that was started.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pydantic

from hslib.errors import HslibError, JobError, ServerError
from hslib.files import Lock, write_atomically
from hslib.parameters import ServerParameters, dump_path, read_api_key
from hslib.server import check, shared_memory
from hslib.server.client import ServerClient
from hslib.server.command_line import command, environment
from hslib.server.dumps import DumpDir
from hslib.server.guard import Guard
from hslib.server.phases import phase_of
from hslib.server.plugin_info import PluginInfo
from hslib.server.preflight import LaunchPlan, require
from hslib.server.processes import is_alive, members, process_mark, stop_group


class ServerState(pydantic.BaseModel):
    """``server.json``: enough to find, check and stop the server. Holds no secret."""

    model_config = pydantic.ConfigDict(frozen=True, protected_namespaces=())

    url: str
    pid: int  # the process group's leader, and the group's id
    process_mark: str  # which process has that id: boot and start time, see process_mark()
    launched_at: float
    model_path: str
    boundaries: tuple[int, ...]
    dump_dir: str
    log: str
    budget_bytes: int
    api_key_env: str = ""
    for_job: bool = False  # started by a job, and stopped when a job of this run ends
    shared_memory: tuple[str, ...] = ()  # names in /dev/shm, once it is ready


_guards: dict[Path, Guard] = {}  # of runs whose servers this process started for a job


def state_path(run_path: Path) -> Path:
    return run_path / "server.json"


def read_state(run_path: Path) -> ServerState | None:
    """The run's server as recorded, whether or not it still lives."""
    try:
        return ServerState.model_validate_json(state_path(run_path).read_bytes())
    except FileNotFoundError:
        return None


def start(
    parameters: ServerParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> ServerState:
    """Preflight, launch, wait until ready, check; on any failure the server is stopped again.

    Args:
        on_progress: called with each new line of progress.

    Raises:
        ServerError: what is in the way, or how the server died, with its log's last lines.
    """
    run_path = parameters.run_path
    running = read_state(run_path)
    if running is not None and is_alive(running):
        raise ServerError(
            f"this run has a server already, at {running.url} (process {running.pid})",
            fix="use it, or stop it first with action = 'stop'",
        )
    if running is not None:
        end(run_path, running)  # what it left when it died
    if parameters.for_job:
        # for when this process is gone; one that was here before ends what it guarded
        _guards[run_path] = Guard(run_path)
    try:
        plan = require(parameters)
        on_progress(f"starting SGLang {plan.interpreter.sglang_version} at port {plan.port}")
        state = launch(plan)
        if parameters.for_job:
            _guards[run_path].watch_over(state)
        wait_ready(state, parameters.start_timeout_s, on_progress)
        on_progress("proving that it captures")
        check_server(state)
        state = _with_shared_memory(run_path, state)
    except BaseException:
        stop(run_path)
        raise
    on_progress("ready: a canary request came back right")
    return state


def _with_shared_memory(run_path: Path, state: ServerState) -> ServerState:
    """Record what would be left in /dev/shm if all of its processes were killed."""
    names = shared_memory.mapped_by(process.pid for process in members(state))
    known = state.model_copy(update={"shared_memory": tuple(sorted(names))})
    write_atomically(state_path(run_path), known.model_dump_json(indent=1).encode())
    return known


def is_guarded(run_path: Path) -> bool:
    """Whether this process started the run's server for a job."""
    return run_path in _guards


def usable_state(run_path: Path) -> ServerState | None:
    """The run's server; one of a job that was killed, whose guard is at it, is stopped instead."""
    state = read_state(run_path)
    if state is not None and state.for_job and not is_guarded(run_path):
        stop(run_path)
        return None
    return state


def launch(plan: LaunchPlan) -> ServerState:
    """Start the process; returns at once."""
    parameters = plan.parameters
    run_path = parameters.run_path
    run_path.mkdir(parents=True, exist_ok=True)
    (parameters.dump_path / "plugin.json").unlink(missing_ok=True)
    log = run_path / "server.log"
    if parameters.for_job:
        keep_log(log)
    launched_at = time.time()
    pid = spawn(command(plan), environment(plan), log)
    state = ServerState(
        url=f"http://{parameters.host}:{plan.port}",
        pid=pid,
        process_mark=process_mark(pid),
        launched_at=launched_at,
        model_path=str(plan.model.path),
        boundaries=plan.boundaries,
        dump_dir=str(parameters.dump_path),
        log=str(log),
        budget_bytes=plan.budget_bytes,
        api_key_env=parameters.api_key_env,
        for_job=parameters.for_job,
    )
    try:
        write_atomically(state_path(run_path), state.model_dump_json(indent=1).encode())
    except BaseException:
        stop_group(state, patience_s=0.0)  # without server.json nothing would find it again
        raise
    return state


def keep_log(log: Path) -> None:
    """Move a log out of the way of the next server's: ``server.log`` to ``server.3.log``."""
    if log.exists():
        kept = [int(path.name.split(".")[1]) for path in log.parent.glob("server.[0-9]*.log")]
        log.rename(log.with_name(f"server.{max(kept, default=0) + 1}.log"))


def spawn(arguments: list[str], variables: dict[str, str], log: Path) -> int:
    """Start a process in a session of its own, its output in ``log``; returns its id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


def wait_ready(
    state: ServerState, timeout_s: float, on_progress: Callable[[str], None] = lambda _line: None
) -> None:
    """Return when the server answers; until then tell its phase and the seconds.

    Raises:
        ServerError: it died, or time is up; with the log's last lines.
    """
    deadline, told = time.monotonic() + timeout_s, ""
    with client_of(state) as client:
        while not client.is_up():
            if not is_alive(state):
                raise ServerError(
                    f"the server died while starting; {state.log} ends:\n{tail(Path(state.log))}",
                    fix=_plugin_complaint(state) or "read the log's last error",
                )
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the server was not ready after {timeout_s:g} s; {state.log} ends:\n"
                    f"{tail(Path(state.log))}",
                    fix="raise start_timeout_s if it is still loading",
                )
            words = starting_words(state)
            if words != told:
                on_progress(words)
                told = words
            time.sleep(0.25)


def starting_words(state: ServerState) -> str:
    """What a server that does not answer yet does, and for how long it has been starting."""
    elapsed = time.time() - state.launched_at
    return f"starting for {elapsed:.0f} s: {phase_of(tail(Path(state.log), lines=10_000))}"


def _plugin_complaint(state: ServerState) -> str:
    """The problems for which the plugin refused a server, from ``plugin.json``."""
    found: dict[str, None] = {}
    for path in sorted(Path(state.dump_dir).glob("plugin*.json")):  # one per replica
        plugin = PluginInfo.model_validate_json(path.read_bytes())
        if plugin.written_at >= state.launched_at:
            found |= dict.fromkeys(plugin.problems)
    return "; ".join(found)


def check_server(state: ServerState) -> check.ServerCheck:
    """Check the run's own server, and that each of its replicas captures.

    Raises:
        ServerError: with the cure.
    """
    dumps = DumpDir(state.dump_dir)
    with client_of(state) as client:
        found = check.check_server(client, dumps, not_before=state.launched_at)
    if found.plugin.boundaries != state.boundaries:
        raise ServerError(
            "the plugin captures other boundaries than asked for",
            expected=state.boundaries,
            got=found.plugin.boundaries,
        )
    check_replicas(state, found.plugin.replicas)
    if found.plugin.pid not in [process.pid for process in members(state)]:
        raise ServerError(
            f"plugin.json was written by process {found.plugin.pid}, which is not this server's",
            fix="another server dumps into this directory: give each its own dump_dir",
        )
    return found


def check_replicas(state: ServerState, replicas: int) -> None:
    """Every data-parallel replica must have hooked its own model and proven its states.

    Raises:
        ServerError: a replica has not, or captures other boundaries.
    """
    for rank in range(1, replicas):
        path = Path(state.dump_dir) / f"plugin.dp{rank}.json"
        try:
            other = PluginInfo.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            other = None
        fresh = other is not None and other.written_at >= state.launched_at and other.proven
        if other is None or not fresh or other.problems or other.boundaries != state.boundaries:
            raise ServerError(
                f"replica {rank} of {replicas} does not capture as asked",
                expected=state.boundaries,
                got=other and (other.problems or other.boundaries),
                fix="see server.log",
            )


def client_of(state: ServerState) -> ServerClient:
    return ServerClient(state.url, read_api_key(state.api_key_env))


def stop(run_path: Path) -> str:
    """Stop the run's server, and remove its dumps if they lie where only this run's do.

    Returns:
        A sentence on what was done.
    """
    state = read_state(run_path)
    if state is None:
        _dismiss_guard(run_path)
        discard_dumps(run_path)  # the folder was made for a server that did not start
        return "this run has no server"
    count = end(run_path, state)
    discard_dumps(run_path)
    if not count:
        return f"the server at {state.url} was not running any more"
    return f"stopped the server at {state.url} ({count} processes)"


def end(run_path: Path, state: ServerState) -> int:
    """Stop a server and forget it; returns how many processes it had. Its dumps stay."""
    count = stop_group(state)
    shared_memory.remove(state.shared_memory)
    now = read_state(run_path)
    if now is not None and now.process_mark == state.process_mark:  # and not a later one's
        state_path(run_path).unlink(missing_ok=True)
    guard = _guards.get(run_path)
    if guard is not None and guard.server in ("", state.process_mark):
        _dismiss_guard(run_path)
    return count


def discard_dumps(run_path: Path) -> None:
    """Remove the run's own dump directory, unless a job waits there for its server's return."""
    dumps = DumpDir(dump_path("", run_path))
    if dumps.root.is_dir() and not dumps.is_served():
        with contextlib.suppress(JobError), Lock(dumps.root / ".lock", "the dump directory"):
            dumps.discard()


def _dismiss_guard(run_path: Path) -> None:
    guard = _guards.pop(run_path, None)
    if guard is not None:
        guard.dismiss()


@dataclass(frozen=True)
class ActionResult:
    """What an action of notebook 02 did: a sentence, and facts for a table."""

    sentence: str
    facts: dict[str, str]


def act(
    parameters: ServerParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> ActionResult:
    """Notebook 02's action: ``start``, ``status``, ``stop``, or ``demo`` = start, check, stop.

    Raises:
        ServerError: see :func:`start`.
    """
    run_path = parameters.run_path
    if parameters.action == "stop":
        return ActionResult(stop(run_path), {})
    if parameters.action == "status":
        facts = status(run_path)
        return ActionResult(f"The server of this run: {facts['server']}.", facts)
    state = start(parameters, on_progress)
    facts = check_server(state).facts()
    if parameters.action == "demo":
        stop(run_path)
        return ActionResult(
            "The server started, captured a canary request right, and was stopped again. "
            'Run with action = "start" to keep it.',
            facts,
        )
    return ActionResult(f"The server captures at {state.url}; stop it with action = 'stop'.", facts)


def status(run_path: Path) -> dict[str, str]:
    """The run's server in a few words, for a table."""
    state = read_state(run_path)
    if state is None:
        return {"server": "none in this run"}
    alive = is_alive(state)
    facts = {
        "server": "running" if alive else "dead",
        "url": state.url,
        "model": state.model_path,
        "boundaries": ", ".join(map(str, state.boundaries)),
        "dump_dir": state.dump_dir,
        "log": state.log,
    }
    if alive:
        try:
            with client_of(state) as client:
                facts["answers"] = "yes" if client.is_up() else f"not yet, {starting_words(state)}"
        except HslibError as error:
            facts["answers"] = error.message
    return facts


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log, without SGLang's page of arguments."""
    try:
        with log.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - 2**20))
            text = handle.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    kept = [line for line in text.splitlines() if line.strip() and "server_args=" not in line]
    return "\n".join(line[:400] for line in kept[-lines:])
