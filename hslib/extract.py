"""A job from its parameters to its result; resumable at any point."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from hslib.cluster import replicas
from hslib.cluster.driver import Driver
from hslib.cluster.replicas import Cluster
from hslib.errors import JobError
from hslib.job.extractor import Extractor
from hslib.job.plan import in_shard
from hslib.job.prepare import Job, Result, open_writer, prepare, result_of
from hslib.job.progress import Progress, ProgressState
from hslib.parameters import ExtractionParameters, StoreParameters
from hslib.server import endpoints
from hslib.server.endpoints import Endpoints
from hslib.store import Entry, JournalState, Store, StoreWriter

__all__ = ["Job", "Result", "open_servers", "prepare", "require_store", "run"]


def open_servers(
    parameters: ExtractionParameters, on_progress: Callable[[str], None] = lambda _line: None
) -> Endpoints | Cluster:
    """The servers of a job, proven: this host's, or with a ``ray_address`` a cluster's.

    Raises:
        ServerError: one can't be started, reached or trusted, or serves something else.
    """
    if parameters.ray_address:
        return replicas.open_cluster(parameters, on_progress)
    return endpoints.open_endpoints(parameters, on_progress)


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
        held.enter_context(servers.claimed(parameters.scan_scope))
        writer = held.enter_context(open_writer(parameters, job.manifest))
        _settle_the_past(job, writer)
        progress = Progress(
            parameters.run_path,
            asked=plan.num_rows,
            todo_tokens=plan.todo_tokens,
            already_done=len(plan.done),
            rejected=len(plan.rejections),
            failed_before=len(plan.failed_before),
            stored_before=len(job.stored_before),
            disks={"the store": parameters.store_path, **servers.disks()},
            show=show,
        )
        with progress:
            progress.log.info("job: %s", job.facts())
            finished = not plan.todo or _extract(job, servers, writer, progress)
            if not finished:
                progress.interrupted("stopped on request; run again to resume")
    return result_of(job, interrupted=not finished)


def _extract(
    job: Job, servers: Endpoints | Cluster, writer: StoreWriter, progress: Progress
) -> bool:
    """False when an interrupt ended it early."""
    if isinstance(servers, Cluster):
        return Driver(servers, job, writer, progress).run()
    return Extractor(job.parameters, servers, writer, progress, job.samples()).run()


def _settle_the_past(job: Job, writer: StoreWriter) -> None:
    """Record new rejections, and take back the lines of rows that are extracted again.

    Raises:
        JobError: the store has changed since the job was planned.
    """
    state: JournalState = Store(job.parameters.store_path).journal_state
    shard = (job.parameters.shard_index, job.parameters.num_shards)
    changed = job.stored_before.symmetric_difference(state.stored)
    if any(in_shard(index, *shard) for index in changed):  # other shards' jobs go on meanwhile
        raise JobError(
            "the store has changed since this job was planned; nothing was sent",
            fix="plan it anew: run extract.prepare again, then extract.run",
        )
    for rejection in job.plan.rejections:
        reason = f"{rejection.reason}: {rejection.detail}"
        known = state.rejected.get(rejection.index)
        if known is None or known.reason != reason:
            writer.record(
                Entry(
                    index=rejection.index,
                    id=rejection.id,
                    status="rejected",
                    reason=reason,
                    finished_at=time.time(),
                )
            )
    for index in {row.index for row in job.plan.todo} | set(job.plan.changed):
        if index in state.stored:
            writer.revoke(
                state.stored[index], "its file failed the resume check, or its row changed"
            )


def require_store(
    parameters: StoreParameters, show: Callable[[str], None] = lambda _line: None
) -> Store:
    """The store that is meant; the demo's is made first where it is not there.

    Raises:
        StoreError: another run's store is not there.
        HslibError: the demo could not be extracted.
    """
    if parameters.is_demo and not (parameters.run_path / "store/manifest.json").exists():
        _extract_demo(parameters, show)
    store = Store(parameters.store_path)
    show(f"ready: {len(store)} samples are in the store")
    return store


def _extract_demo(parameters: StoreParameters, show: Callable[[str], None]) -> None:
    """What notebook 03 does with its defaults."""

    def tell(state: ProgressState) -> None:
        show(f"extracting the demo: {state.ok} of {state.asked}")

    extraction = ExtractionParameters(run_dir=parameters.run_dir)
    fleet = endpoints.open_endpoints(
        extraction, lambda line: show(f"starting the demo's server: {line}")
    )
    try:
        run(prepare(extraction, fleet), fleet, tell).require_whole()
    finally:
        fleet.close()
