"""What the driver and the replicas of a job tell each other."""

from dataclasses import dataclass, field
from pathlib import Path

from hslib.model import choose_layers, layers_text, names_a_draft, read_shape
from hslib.parameters import ExtractionParameters
from hslib.server import ServerCheck


@dataclass(frozen=True)
class ReplicaFacts:
    """What a checked replica is. ``dump_room_bytes``: what one dump may take there."""

    host: str
    pid: int
    check: ServerCheck
    longest_row: int
    dump_room_bytes: int


@dataclass(frozen=True)
class FailedRow:
    """A row that is recorded as failed, in the shard's journal."""

    index: int
    num_tokens: int
    check: str
    reason: str


@dataclass
class ShardReport:
    """What has become of a shard's rows so far; all of it is committed."""

    ok: int = 0
    num_tokens: int = 0
    size_bytes: int = 0
    last_index: int | None = None
    request_s: float = 0.0  # of the last row
    failures: list[FailedRow] = field(default_factory=list)


def of_replica(job: ExtractionParameters, number: int) -> ExtractionParameters:
    """The job's parameters as they are for one replica: a run and a dump directory of its own."""
    name = f"{number:05d}"
    dumps = Path(str(job.dump_dir)).absolute() / f"replica-{name}" if job.dump_dir else ""
    return job.model_copy(
        update={
            "run_dir": str(job.run_path / "replicas" / name),
            "store_dir": str(job.store_path),
            "model_path": str(job.model_folder) if job.model_path else "",
            "layers": _without_draft(job),
            "dump_dir": str(dumps),
            "ray_address": "",
            "num_replicas": 1,
        }
    )


def _without_draft(job: ExtractionParameters) -> str:
    """The job's layers as numbers where a draft names them: the replica's host may not have it."""
    if not names_a_draft(job.layers):
        return job.layers
    return layers_text(choose_layers(job.layers, read_shape(job.model_folder)))
