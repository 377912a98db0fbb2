"""Which server a job uses: one that is named, the run's own, or one started for the job."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hslib.errors import ServerError
from hslib.files import Lock
from hslib.model import model_differences
from hslib.parameters import ExtractionParameters, ServerParameters, read_api_key
from hslib.server import launch as server
from hslib.server.check import ServerCheck, check_server
from hslib.server.client import ServerClient
from hslib.server.dumps import DumpDir
from hslib.server.processes import is_alive
from hslib.store import probe_write


@dataclass
class Endpoint:
    """A proven server that a job may use; ``close`` stops it only if it was started for jobs."""

    url: str
    dump_path: Path
    api_key: str
    check: ServerCheck
    state: server.ServerState | None  # None for a server that somebody else runs

    @property
    def origin(self) -> str:
        """In words, for a table."""
        if self.state is None:
            return "named by server_url"
        return "started for this job" if self.state.for_job else "the run's own"

    def client(self, timeout_s: float) -> ServerClient:
        return ServerClient(self.url, self.api_key, timeout_s)

    def may_return(self) -> bool:
        """Whether a server that does not answer can come back by itself."""
        return self.state is None or is_alive(self.state)

    def check_again(self) -> None:
        """Prove the server as it is now, and that it is still the one the job began with.

        Raises:
            ServerError: it can't be trusted, or something else is served now.
        """
        with self.client(60.0) as client:
            now = check_server(client, DumpDir(self.dump_path))
        differing = differences(self.check, now)
        if not differing:
            self.check = now  # and when it was started
        else:
            raise ServerError(
                f"another server came back: {', '.join(differing)} differ",
                differing=differing,
                fix="start the one that the job began with, and run the job again to resume",
            )

    def was_restarted(self) -> bool:
        """Whether another process serves since the proof, however short the gap was."""
        return DumpDir(self.dump_path).plugin_mark() != self.check.mark

    def close(self) -> str:
        """Stop the server if it was started for a job; says what was done."""
        if self.state is None or not self.state.for_job:
            return "The server was running before and stays."
        server.stop(server.state_path_of(self.state).parent)
        return "The server that was started for this job is stopped."


class Servers(Protocol):
    """What a job must know of its servers, wherever they run; all serve the same."""

    @property
    def check(self) -> ServerCheck: ...

    @property
    def longest_row(self) -> int:
        """Tokens that every server takes."""

    def dump_room_bytes(self) -> int:
        """What one dump may need on every server's host."""


@dataclass(frozen=True)
class Endpoints:
    """The servers of one job, all serving the same; usually one."""

    members: tuple[Endpoint, ...]

    @property
    def check(self) -> ServerCheck:
        """Of the first; the others serve the same."""
        return self.members[0].check

    @property
    def dump_paths(self) -> tuple[Path, ...]:
        """Each once: servers may share one."""
        return tuple(dict.fromkeys(member.dump_path for member in self.members))

    @property
    def longest_row(self) -> int:
        """Tokens that every member takes."""
        return min(member.check.settings.max_req_input_len for member in self.members)

    def dump_room_bytes(self) -> int:
        """What one dump may need on every member: free space, and the plugin's own budget."""
        free = (DumpDir(path).free_bytes() for path in self.dump_paths)
        budgets = (member.check.plugin.budget_bytes for member in self.members)
        return min([*free, *(budget for budget in budgets if budget)])

    def disks(self) -> dict[str, Path]:
        """Where dumps lie, for what is said of free space."""
        return {"dumps": self.dump_paths[0]}

    @contextmanager
    def claimed(self, scan_scope: str) -> Iterator[None]:
        """The dump directories are this job's alone, and empty at its begin and end.

        Raises:
            JobError: another job has one.
        """
        with ExitStack() as held:
            for path in self.dump_paths:
                held.enter_context(Lock(path / ".lock", f"dump directory {path}"))
            self._remove_leftovers(scan_scope)
            yield
            self._remove_leftovers(scan_scope)

    def _remove_leftovers(self, scan_scope: str) -> None:
        """Dumps of jobs that died, and late answers; the lock says that nobody else wants them."""
        for path in self.dump_paths:
            dumps = DumpDir(path)
            kit = [name for name in dumps.names() if name.startswith("hs-")]
            dumps.clear(dumps.names() if scan_scope == "directory" else kit)

    def facts(self) -> dict[str, str]:
        """For a table."""
        count = len(self.members)
        origin = self.members[0].origin if count == 1 else f"{count}, named by server_url"
        return self.check.facts() | {"server": origin}

    def close(self) -> str:
        """Stop what was started for this job; says what was done."""
        return " ".join(dict.fromkeys(member.close() for member in self.members))


def open_endpoints(
    parameters: ExtractionParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> Endpoints:
    """Find or start the servers of an extraction, and prove each; before, prove an object store.

    Raises:
        ServerError: one can't be started, reached or trusted, or serves something else.
        StoreError: the object store refuses, or can't be reached; nothing was started then.
    """
    probe_write(parameters.store_path)
    if not parameters.server_urls:
        return Endpoints((_own_server(parameters, on_progress),))
    pairs = zip(parameters.server_urls, parameters.dump_paths, strict=True)
    fleet = Endpoints(tuple(_attach(url, path, parameters.api_key) for url, path in pairs))
    for member in fleet.members[1:]:
        require_same(fleet.members[0].url, fleet.check, member.url, member.check)
    return fleet


def differences(one: ServerCheck, other: ServerCheck) -> dict[str, tuple[Any, Any]]:
    """``{field: (one's, other's)}`` of what two servers serve. Pure."""
    first, second = one.plugin.identity(), other.plugin.identity()
    found = {name: (first[name], second[name]) for name in first if first[name] != second[name]}
    weights = (one.plugin.weights, other.plugin.weights)
    place = (one.plugin.boundaries, one.plugin.num_layers)
    # states of other layers say nothing of the model
    same_states = not {"boundaries", "stores_final"} & found.keys()
    canaries = (one.canary, other.canary) if same_states else (None, None)
    return found | model_differences(weights, canaries, *place)


def require_same(name: str, proof: ServerCheck, other_name: str, other: ServerCheck) -> None:
    """Raises :class:`ServerError` when two servers of one job serve different things."""
    differing = differences(proof, other)
    if differing:
        raise ServerError(
            f"{other_name} serves something else than {name}: {', '.join(differing)} differ",
            differing=differing,
            fix="use servers of one model with the same layers",
        )


def _own_server(parameters: ExtractionParameters, on_progress: Callable[[str], None]) -> Endpoint:
    state = server.read_state(parameters.run_path)
    if state is None or not is_alive(state):
        state = server.start(_for_job(parameters), on_progress)
    key = read_api_key(state.api_key_env)
    return Endpoint(state.url, Path(state.dump_dir), key, server.check_server(state), state)


def _attach(url: str, dump_path: Path, api_key: str) -> Endpoint:
    dumps = DumpDir(dump_path)
    with ServerClient(url, api_key) as client:
        if not client.is_up():
            raise ServerError(
                f"no server answers at {url}",
                fix="start it, or leave server_url empty for one started here",
            )
        proof = check_server(client, dumps)
    return Endpoint(url, dumps.root, api_key, proof, None)


def _for_job(parameters: ExtractionParameters) -> ServerParameters:
    return ServerParameters(
        run_dir=parameters.run_dir,
        action="start",
        model_path=parameters.model_path,
        layers=parameters.layers,
        store_final=parameters.store_final,
        accept_unwitnessed=parameters.accept_unwitnessed,
        dump_dir=str(parameters.dump_paths[0]),
        tp_size=parameters.tp_size,
        context_length=parameters.context_length,
        extra_args=parameters.extra_args,
        api_key_env=parameters.api_key_env,
        for_job=True,
    )
