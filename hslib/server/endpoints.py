"""The servers that a job uses: named ones, the run's own, or one started for the job."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hslib.errors import HslibError, ParameterError, ServerError
from hslib.parameters import (
    CaptureParameters,
    ExtractionParameters,
    ServerParameters,
    read_api_key,
)
from hslib.server import launch
from hslib.server.check import ServerCheck, check_server, require_same
from hslib.server.client import ServerClient
from hslib.server.dumps import DumpDir
from hslib.server.endpoint import Endpoint
from hslib.server.job_lock import JobLock, run_lock
from hslib.server.preflight import preflight
from hslib.server.processes import is_alive
from hslib.server.scan import ScanningEndpoint
from hslib.store import probe_write


class Servers(Protocol):
    """What the preparation of a job must know of its servers; all serve the same."""

    @property
    def check(self) -> ServerCheck: ...

    @property
    def longest_row(self) -> int:
        """Tokens that every server takes."""

    def dump_room_bytes(self) -> int:
        """What one dump may take on every server's host."""


@dataclass(frozen=True)
class Endpoints:
    """The endpoints of one job, all serving the same; usually one."""

    members: tuple[Endpoint, ...]
    locks: list[JobLock] = field(default_factory=list)  # held until close()

    @property
    def check(self) -> ServerCheck:
        """Of the first; the others serve the same."""
        return self.members[0].check

    @property
    def longest_row(self) -> int:
        """Tokens that every member takes."""
        return min(member.check.settings.max_req_input_len for member in self.members)

    def dump_dirs(self) -> dict[str, str]:
        """Where dumps lie, and how this job's are called."""
        return {str(member.dumps.root): member.dump_prefix for member in self.members}

    def disks(self) -> dict[str, Path]:
        """Where dumps lie, for what is said of free space."""
        return {"dumps": self.members[0].dumps.root}

    def dump_room_bytes(self) -> int:
        """What one dump may take on every member: free space, and the plugin's own budget."""
        free = [member.dumps.free_bytes() for member in self.members]
        budgets = (member.check.plugin.budget_bytes for member in self.members)
        return min([*free, *(budget for budget in budgets if budget)])

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """The dump directories are this job's alone, and empty at its begin and end.

        Raises:
            JobError: another job has one.
        """
        one_each = {member.dumps.root: member for member in self.members}  # servers may share one
        with ExitStack() as held:
            for member in one_each.values():
                member.claim()
                held.callback(member.release)
            yield

    def facts(self) -> dict[str, str]:
        """For a table."""
        count = len(self.members)
        origin = self.members[0].origin if count == 1 else f"{count}, named by server_url"
        return self.check.facts() | {"server": origin}

    def close(self) -> str:
        """Stop what was started for this job, and give the run free; says what was done."""
        try:
            return " ".join(dict.fromkeys(member.close() for member in self.members))
        finally:
            for lock in self.locks:
                lock.end()


def open_endpoints(
    parameters: ExtractionParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> Endpoints:
    """Find or start the servers of a job, and check each; before, that the store can be written.

    Raises:
        JobError: another job is at work on this run; nothing was started then.
        ServerError: one can't be started, reached or trusted, or serves something else.
        StoreError: the object store refuses, or can't be reached; nothing was started then.
    """
    with ExitStack() as held:
        lock = held.enter_context(run_lock(parameters.run_path))
        probe_write(parameters.store_path)
        members = _members(parameters, on_progress)
        held.pop_all()
    return Endpoints(members, [lock])


def _members(
    parameters: ExtractionParameters, on_progress: Callable[[str], None]
) -> tuple[Endpoint, ...]:
    if not parameters.server_urls:
        return (_own(parameters, on_progress),)
    pairs = zip(parameters.server_urls, parameters.dump_paths, strict=True)
    members = tuple(_named(url, DumpDir(path), parameters) for url, path in pairs)
    for member in members[1:]:
        require_same(members[0].url, members[0].check, member.url, member.check)
    return members


def store_lock(parameters: ExtractionParameters) -> list[JobLock]:
    """Keeps other jobs out of this shard of a store; a bucket is looked at when it is written.

    Raises:
        JobError: one is at work there.
    """
    path, shard = parameters.store_path, (parameters.shard_index, parameters.num_shards)
    if not isinstance(path, Path):
        return []
    name = ".job-{:05d}-of-{:05d}.lock".format(*shard)
    return [JobLock(path / name, "shard {} of {} of the store {}".format(*shard, path))]


def _kind(parameters: ExtractionParameters) -> type[Endpoint]:
    return ScanningEndpoint if parameters.scan_scope == "directory" else Endpoint


def _named(url: str, dumps: DumpDir, parameters: ExtractionParameters) -> Endpoint:
    """A server that somebody else runs."""
    with ServerClient(url, parameters.api_key) as client:
        if not client.is_up():
            raise ServerError(
                f"no server answers at {url}",
                fix="start it, or leave server_url empty for one started here",
            )
        check = check_server(client, dumps)
    return _kind(parameters)(url, dumps, parameters.api_key, check, parameters)


def _own(parameters: ExtractionParameters, on_progress: Callable[[str], None]) -> Endpoint:
    """The run's server, or one that is started for the job."""
    state = launch.usable_state(parameters.run_path)
    is_new = state is None or not is_alive(state)
    if state is None or is_new:
        state = launch.start(_for_job(parameters), on_progress)
    own = RunServer(parameters, state)
    try:
        key, check = read_api_key(state.api_key_env), launch.check_server(state)
        return _kind(parameters)(own.url, DumpDir(own.dump_path), key, check, parameters, own)
    except BaseException:
        if is_new:
            own.stop()
        raise


class RunServer:
    """The run's server, as ``server.json`` describes it."""

    def __init__(self, parameters: ExtractionParameters, state: launch.ServerState) -> None:
        self._parameters, self._state = parameters, state

    @property
    def url(self) -> str:
        return self._state.url

    @property
    def dump_path(self) -> Path:
        return Path(self._state.dump_dir)

    @property
    def is_the_jobs(self) -> bool:
        """Whether it was started for a job."""
        return self._state.for_job

    def is_alive(self) -> bool:
        return is_alive(self._state)

    def start_again(self) -> ServerCheck:
        """Start another in place of one that died; its log is kept as ``server.1.log`` and so on.

        Raises:
            ServerError: it can't be started or trusted.
        """
        launch.end(self._parameters.run_path, self._state)  # what its group has left
        self._state = launch.start(_for_job(self._parameters))
        return launch.check_server(self._state)

    def find_successor(self) -> bool:
        """Whether another server of this run lives, as notebook 02 starts one."""
        found = launch.read_state(self._parameters.run_path)
        if found is None or found == self._state or not is_alive(found):
            return False
        self._state = found
        return True

    def stop(self) -> None:
        """Stop it, and remove a dump directory that was made for it alone."""
        launch.end(self._parameters.run_path, self._state)
        launch.discard_dumps(self._parameters.run_path)


def _for_job(parameters: ExtractionParameters) -> ServerParameters:
    shared = parameters.model_dump(include={*CaptureParameters.model_fields, "api_key_env"})
    dump_dir = str(parameters.dump_paths[0])
    return ServerParameters(**shared, action="start", dump_dir=dump_dir, for_job=True)


def start_problems(parameters: ExtractionParameters) -> list[HslibError]:
    """What keeps a server for the job from starting here; empty where none is to be started."""
    try:
        _ = parameters.api_key
    except ParameterError as error:
        return [error]
    state = launch.read_state(parameters.run_path)
    if parameters.server_urls or parameters.ray_address or (state and is_alive(state)):
        return []
    wanted = _for_job(parameters)
    was_there = wanted.dump_path.exists()
    _plan, problems = preflight(wanted)
    if problems and not was_there:
        DumpDir(wanted.dump_path).discard()
    return list(problems)
