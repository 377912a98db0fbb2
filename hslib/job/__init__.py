"""A job: what is to do, what is sent next, how it is done, and how it stands."""

from hslib.job.extractor import Extractor
from hslib.job.forecast import Forecast
from hslib.job.inputs import input_problems
from hslib.job.interrupt import Interrupts
from hslib.job.prepare import Job, Result, prepare, record_plan, result_of
from hslib.job.progress import (
    Progress,
    ProgressState,
    ReplicaState,
    at_work,
    duration,
    open_log,
    read_progress,
    time_words,
)
from hslib.job.record import RunRecord, installed_versions, read_record, record_run
from hslib.job.tasks import Tasks
from hslib.job.watch import find_runs, is_at_work, missing_shards

__all__ = [
    "at_work",
    "duration",
    "Extractor",
    "find_runs",
    "Forecast",
    "input_problems",
    "installed_versions",
    "Interrupts",
    "is_at_work",
    "Job",
    "missing_shards",
    "open_log",
    "prepare",
    "Progress",
    "ProgressState",
    "read_progress",
    "read_record",
    "record_plan",
    "record_run",
    "ReplicaState",
    "Result",
    "result_of",
    "RunRecord",
    "Tasks",
    "time_words",
]
