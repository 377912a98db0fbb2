"""Which server a job uses: one that is named, the run's own, or one started for the job."""

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hslib import server
from hslib.client import ServerClient
from hslib.config import ExtractionParameters, ServerParameters, read_api_key
from hslib.dump import DumpDir
from hslib.errors import ServerError
from hslib.proof import Proof, prove


@dataclass
class Serving:
    """A proven server that a job may use; ``close`` stops it only if it was started for jobs."""

    url: str
    dump_path: Path
    api_key: str
    proof: Proof
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
        return self.state is None or server.is_alive(self.state)

    def prove_again(self) -> None:
        """Prove the server as it is now, and that it is still the one the job began with.

        Raises:
            ServerError: it can't be trusted, or something else is served now.
        """
        with self.client(60.0) as client:
            now = prove(client, DumpDir(self.dump_path))
        before, after = self.proof.plugin.identity(), now.plugin.identity()
        differing = {n: (before[n], after[n]) for n in before if before[n] != after[n]}
        if differing:
            raise ServerError(
                f"another server came back: {', '.join(differing)} differ",
                differing=differing,
                fix="start the one that the job began with, and run the job again to resume",
            )

    def close(self) -> str:
        """Stop the server if it was started for a job; says what was done."""
        atexit.unregister(self.close)
        if self.state is None or not self.state.for_job:
            return "The server was running before and stays."
        server.stop(server.state_path_of(self.state).parent)
        return "The server that was started for this job is stopped."


def open_server(
    parameters: ExtractionParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> Serving:
    """Find or start the server of an extraction, and prove it.

    Raises:
        ServerError: it can't be started, reached or trusted.
    """
    if parameters.server_url:
        return _attach(parameters)
    state = server.read_state(parameters.run_path)
    if state is None or not server.is_alive(state):
        state = server.start(_for_job(parameters), on_progress)
    proof = server.prove(state)
    serving = Serving(
        state.url, Path(state.dump_dir), read_api_key(state.api_key_env), proof, state
    )
    atexit.register(serving.close)
    return serving


def _attach(parameters: ExtractionParameters) -> Serving:
    dumps = DumpDir(parameters.dump_path)
    with ServerClient(parameters.server_url, parameters.api_key) as client:
        if not client.is_up():
            raise ServerError(
                f"no server answers at {parameters.server_url}",
                fix="start it, or leave server_url empty for one started here",
            )
        proof = prove(client, dumps)
    return Serving(parameters.server_url, dumps.root, parameters.api_key, proof, None)


def _for_job(parameters: ExtractionParameters) -> ServerParameters:
    return ServerParameters(
        run_dir=parameters.run_dir,
        action="start",
        model_path=parameters.model_path,
        layers=parameters.layers,
        dump_dir=parameters.dump_dir,
        api_key_env=parameters.api_key_env,
        for_job=True,
    )
