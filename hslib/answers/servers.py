"""The servers that answer: named ones, the run's own, or one that is started for this."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from hslib.errors import ServerError
from hslib.parameters import RowsParameters, ServerParameters
from hslib.server import ServerClient, launch, run_lock
from hslib.server.processes import is_alive


@contextmanager
def served(
    parameters: RowsParameters, show: Callable[[str], None] = lambda _line: None
) -> Iterator[Sequence[ServerClient]]:
    """Clients of them; what was started here is stopped at the end.

    Raises:
        JobError: another process works on the run, and may stop its server.
        ServerError: one does not answer, or can't be started.
    """
    with ExitStack() as stack:
        if parameters.server_urls:
            clients = [
                stack.enter_context(ServerClient(url, parameters.api_key))
                for url in parameters.server_urls
            ]
            for client in clients:
                if not client.is_up():
                    raise ServerError(
                        f"no server answers at {client.url}",
                        fix="start it, or leave server_url empty for one started here",
                    )
            yield clients
            return
        stack.enter_context(run_lock(parameters.run_path, role="answers"))
        state = launch.usable_state(parameters.run_path)
        if state is None or not is_alive(state):
            # no state is stored of these answers, so it need not be witnessed
            own = ServerParameters(
                run_dir=parameters.run_dir,
                action="start",
                model_path=parameters.model_path,
                accept_unwitnessed=True,
                for_job=True,
            )
            state = launch.start(own, show)
            stack.callback(launch.stop, parameters.run_path)
        yield [stack.enter_context(launch.client_of(state))]
