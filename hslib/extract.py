"""A job from its parameters to its result; resumable at any point."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from hslib import answers
from hslib.cluster import Cluster, ShardRun, opening
from hslib.dataset import count_reasons
from hslib.errors import StoreError, raise_all
from hslib.job import (
    Extractor,
    Interrupts,
    Job,
    Progress,
    ProgressState,
    Result,
    input_problems,
    is_at_work,
    prepare,
    read_progress,
    record_plan,
    record_run,
    result_of,
)
from hslib.parameters import (
    ExportParameters,
    ExtractionParameters,
    RowsParameters,
    StoreParameters,
)
from hslib.server import Endpoints, Guard, endpoints, run_lock, store_lock
from hslib.store import Store, StoreWriter, find_store

__all__ = ["Job", "own_answers_store", "Result", "open_servers", "prepare", "require_store", "run"]


_DEMO_ANSWER = 48  # tokens: the lists that the demo model tells have no likeliest end


def open_servers(
    parameters: ExtractionParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> Endpoints | Cluster:
    """The servers of a job, proven: this host's, or with a ``ray_address`` a cluster's.

    Raises:
        ServerError: one can't be started, reached or trusted, or serves something else.
        HslibError: a parameter, the model, the rows, the store, its disk or the port is not as it
            must be; all that is found is in one error, and nothing was started.
        JobError: another job is at work on this run or store; nothing was started then.
        StoreError: the store's bucket refuses, or can't be reached.
    """
    # before a server is loaded for nothing
    told: list[str] = []
    inputs = input_problems(parameters, told.append)
    raise_all([*inputs, *endpoints.start_problems(parameters)])

    def show(line: str) -> None:
        # a notebook's line replaces the one before; the last stays
        on_progress(line if line.startswith("ready") else "; ".join([line, *told]))

    opened = opening.open_cluster if parameters.ray_address else endpoints.open_endpoints
    with ExitStack() as held:
        locks = [run_lock(parameters.run_path), *store_lock(parameters)]
        for lock in locks:
            held.enter_context(lock)
        servers = opened(parameters, show)
        held.pop_all()
    servers.locks.extend(locks)
    return servers


def run(
    job: Job, servers: Endpoints | Cluster, show: Callable[[ProgressState], None] | None = None
) -> Result:
    """Extract what the plan says is to do; resumable at any point.

    Args:
        show: called with the progress twice a second; None = a bar in the terminal.

    Raises:
        HslibError, OSError: what stopped the job; everything committed before stays.
    """
    parameters, plan = job.parameters, job.plan
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())
        held.enter_context(Guard(parameters.run_path))
        writer = held.enter_context(
            StoreWriter(
                parameters.store_path,
                job.manifest,
                parameters.shard_index,
                parameters.num_shards,
                max_encoding_error=parameters.max_encoding_error,
            )
        )
        held.enter_context(servers.claimed())
        record_plan(job, writer)
        record_run(parameters, job.manifest, servers.check.plugin)
        begun = ProgressState(
            asked=plan.num_rows,
            failed=len(plan.failed_before),
            rejected=len(plan.rejections),
            rejected_for=count_reasons(plan.rejections),
            already_done=len(plan.done),
            stored=len(job.stored_before),
            dump_dirs=servers.dump_dirs(),
        )
        disks = {"the store": parameters.store_path, **servers.disks()}
        progress = Progress(parameters.run_path, begun, plan.todo_tokens, disks, show)
        with progress:
            progress.log.info("job: %s", job.facts())
            finished = not plan.todo or _extract(job, servers, writer, progress, interrupts)
            if not finished:
                progress.interrupted()
    return result_of(job, interrupted=not finished)


def _extract(
    job: Job,
    servers: Endpoints | Cluster,
    writer: StoreWriter,
    progress: Progress,
    interrupts: Interrupts,
) -> bool:
    """False when an interrupt ended it early."""
    if isinstance(servers, Cluster):
        return ShardRun(servers, job, progress).run(interrupts)
    extractor = Extractor(job.parameters, servers.members, writer, progress, job.samples())
    return extractor.run(interrupts)


def require_store(
    parameters: StoreParameters, show: Callable[[str], None] = lambda _line: None
) -> Store:
    """The store that is meant; the demo's is made first where it is not there.

    Raises:
        StoreError: another run's store is not there.
        HslibError: the demo could not be extracted.
    """
    if parameters.is_demo and _is_unfinished(parameters):
        _extract_demo(parameters, show)
    store = Store(parameters.store_path)
    show(f"ready: {len(store)} samples are in the store")
    return store


def own_answers_store(
    parameters: ExportParameters, show: Callable[[str], None] = lambda _line: None
) -> Store | None:
    """The store of rows that the target answered itself; of the demo it is made if need be.

    None where none is named and the run is not the demo.

    Raises:
        HslibError: it can't be opened or made.
    """
    if parameters.own_answers_store:
        own = Store(parameters.own_answers_store)
        _require_same_capture(Store(parameters.store_path), own)
        return own
    if not parameters.is_demo:
        return None
    run_path = parameters.run_path / "own_answers"
    extraction = ExtractionParameters(
        run_dir=str(run_path), dataset_path=str(run_path / "rows.jsonl")
    )
    if _is_unfinished(extraction):
        _answer_and_extract_demo(extraction, show)
    store = Store(extraction.store_path)
    show(f"ready: {len(store)} rows of the model's own answers are in a store")
    return store


def _require_same_capture(one: Store, other: Store) -> None:
    """Raises :class:`StoreError` when two stores are of other models or layers."""
    names = ("model_config_hash", "boundaries", "final_norm")
    differing = [n for n in names if getattr(one.manifest, n) != getattr(other.manifest, n)]
    if differing:
        raise StoreError(
            f"the two stores differ in {', '.join(differing)}",
            fix="extract both with the same model and layers",
            paths=[str(one.path), str(other.path)],
        )


def _answer_and_extract_demo(extraction: ExtractionParameters, show: Callable[[str], None]) -> None:
    """What notebooks 00 and 03 do, with one server."""
    chats = RowsParameters(
        run_dir=extraction.run_dir,
        regenerate=True,
        max_answer_tokens=_DEMO_ANSWER,
        cut_answers="keep",
        concurrency=64,
    )
    servers = endpoints.open_endpoints(
        extraction, lambda line: show(f"starting the demo's server: {line}")
    )
    try:
        answers.make_rows(chats, lambda line: show(f"the demo model's own answers: {line}"))
        run(prepare(extraction, servers), servers, lambda _state: None).require_whole()
    finally:
        servers.close()


def _is_unfinished(parameters: StoreParameters) -> bool:
    """Whether there is no store yet, or the job that made it did not come to its end."""
    job = read_progress(parameters.run_path)
    return find_store(parameters.store_path) is None or (
        job is not None and job.state != "finished" and not is_at_work(job, time.time())
    )


def _extract_demo(parameters: StoreParameters, show: Callable[[str], None]) -> None:
    """What notebook 03 does with its defaults."""

    def tell(state: ProgressState) -> None:
        show(f"extracting the demo: {state.ok} of {state.asked}")

    extraction = ExtractionParameters(run_dir=parameters.run_dir)
    servers = endpoints.open_endpoints(
        extraction, lambda line: show(f"starting the demo's server: {line}")
    )
    try:
        run(prepare(extraction, servers), servers, tell).require_whole()
    finally:
        servers.close()
