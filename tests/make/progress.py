"""The progress of a job that does not run."""

from hslib.job.progress import ProgressState


def progress(**changes: object) -> ProgressState:
    """``progress.json`` of a job on its way, with changes."""
    facts: dict[str, object] = {
        "state": "running",
        "pid": 7,
        "started_at": 900.0,
        "updated_at": 1000.0,
        "asked": 100,
        "ok": 30,
        "failed": 3,
        "rejected": 2,
        "already_done": 5,
        "stored": 35,
        "num_tokens": 9000,
        "size_bytes": 500_000_000,
        "samples_per_s": 0.3,
        "tokens_per_s": 90.0,
        "mb_per_s": 5.0,
        "eta_s": 600.0,
        "last_index": 41,
        "reasons": {"checksum": 1, "rows": 2},
        "free_bytes": {"dumps": 3_000_000_000, "the store": 36_000_000_000},
    }
    return ProgressState.model_validate({**facts, **changes})
