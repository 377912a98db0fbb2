"""What can be known of a job's rows before a server is started, within seconds."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from hslib.dataset import Dataset, Limits, Survey
from hslib.errors import DatasetError, HslibError
from hslib.job.plan import (
    JobPlan,
    plan_job,
    rejections_cure,
    rejections_sentence,
    require_few_rejections,
    require_masks,
    require_room,
    require_unchanged,
)
from hslib.model import ModelInfo, choose_layers, placeholder_ids, read_model
from hslib.parameters import ExtractionParameters
from hslib.server import launch
from hslib.server.processes import is_alive
from hslib.store import (
    CODECS,
    JournalState,
    Store,
    find_store,
    open_storage,
    probe_write,
    state_bytes,
)

T = TypeVar("T")
_ROWS = 10_000  # checked before; one to two seconds
_UNKNOWN = 2**31  # a vocabulary or length that only the server knows


def dataset_of(parameters: ExtractionParameters, limits: Limits, limit: int = 0) -> Dataset:
    """The job's rows; ``limit``: at most so many of them, 0 = all that the job has."""
    least = min(filter(None, (limit, parameters.limit)), default=0)
    return Dataset(parameters.dataset_source, limits, least, parameters.mask_column)


def _has_server(parameters: ExtractionParameters) -> bool:
    """Whether the run has a server, which may serve another model than the demo's."""
    state = launch.read_state(parameters.run_path)
    return state is not None and is_alive(state)


def input_problems(
    parameters: ExtractionParameters, tell: Callable[[str], None] = lambda _line: None
) -> list[HslibError]:
    """What is wrong with the model's folder, the rows, the store and its disk; empty = nothing.

    Of the rows: every file, and the first ones; where these are all, whether too many are rejected
    or have masks of zeros, and whether the store holds other rows under their indices.

    Args:
        tell: called with how much of them is stored already, where all were read.
    """
    found = _Found()
    model = found.of(_known_model, parameters)
    layers = found.of(choose_layers, parameters.layers, model) if model else None
    survey = found.of(_check_rows, parameters, model)
    store = found.of(_check_store, parameters)
    is_all = survey is not None and survey.num_rows <= _ROWS
    if survey and is_all and store and parameters.on_changed_rows == "refuse":
        found.of(_check_unchanged, parameters, survey, store)
    if model and layers is not None and survey and is_all:
        states = len(layers) + parameters.store_final
        per_token = state_bytes(states, model.hidden_size)
        stored = per_token * CODECS[parameters.encoding].share(states, model.hidden_size)
        longest = parameters.max_tokens or parameters.context_length or model.context_length
        rows = [row for row in survey.rows if row.num_tokens <= longest]  # others are rejected
        survey = dataclasses.replace(survey, rows=rows)
        plan = found.of(_check_room, parameters, (per_token, stored), survey, store)
        if plan and plan.done:
            tell(_stored_words(plan))
    return found.problems


class _Found:
    """Goes on where an error would end the looking."""

    def __init__(self) -> None:
        self.problems: list[HslibError] = []

    def of(self, look: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return look(*arguments)
        except HslibError as error:
            self.problems.append(error)
            return None


def _known_model(parameters: ExtractionParameters) -> ModelInfo | None:
    """The model that will be served; None where only a server knows."""
    if not parameters.model_path and (parameters.server_urls or _has_server(parameters)):
        return None
    return read_model(parameters.model_folder)


def _check_rows(parameters: ExtractionParameters, model: ModelInfo | None) -> Survey:
    limits = Limits(_UNKNOWN, parameters.max_tokens or _UNKNOWN)
    if model is not None:
        limits = Limits(model.vocab_size, limits.max_tokens, placeholder_ids(model.path))
    survey = dataset_of(parameters, limits, _ROWS + 1).survey()
    is_all = survey.num_rows <= _ROWS
    if is_all or (parameters.strict and survey.rows):
        require_few_rejections(survey, parameters.max_rejected_share, parameters.strict)
    if is_all:
        require_masks(survey, parameters.max_zero_mask_share)
    # the longest may come first, in a dataset that is sorted
    elif not survey.rows and all(r.reason != "too_long" for r in survey.rejections):
        raise DatasetError(
            f"none of the first {survey.num_rows} rows can be extracted: "
            f"{rejections_sentence(survey)}",
            fix=rejections_cure(survey),
        )
    return survey


def _check_store(parameters: ExtractionParameters) -> Store | None:
    """The store, if there is one; that it can be written."""
    probe_write(parameters.store_path)
    return find_store(parameters.store_path)


def _check_unchanged(parameters: ExtractionParameters, survey: Survey, store: Store) -> None:
    """That the stored rows are the dataset's."""
    plan = _plan(parameters, survey, store, (0, 0.0))
    places = {"store": str(parameters.store_path), "dataset": parameters.dataset_source}
    require_unchanged(plan, store.entries, survey, **places)


def _stored_words(plan: JobPlan) -> str:
    """Before a server is started: it takes minutes, also where nothing is left to do."""
    words = f"{len(plan.done):,} of {plan.num_rows:,} rows are stored already"
    if plan.todo:
        return words
    return f"{words}; a server is asked whether they are of the model that it serves"


def _plan(
    parameters: ExtractionParameters,
    survey: Survey,
    store: Store | None,
    bytes_per_token: tuple[int, float],
) -> JobPlan:
    """``bytes_per_token``: of a dump's states, and of a stored sample's."""
    return plan_job(
        survey,
        store.journal_state if store else JournalState(),
        (),
        shard=(parameters.shard_index, parameters.num_shards),
        retry_failed=parameters.retry_failed,
        state_bytes_per_token=bytes_per_token[0],
        stored_bytes_per_token=bytes_per_token[1],
    )


def _check_room(
    parameters: ExtractionParameters,
    bytes_per_token: tuple[int, float],
    survey: Survey,
    store: Store | None,
) -> JobPlan:
    """What is to do; that the states of the rows which are not stored yet fit on the disk."""
    plan = _plan(parameters, survey, store, bytes_per_token)
    free = open_storage(parameters.store_path).free_bytes()
    require_room(plan, store_free=free, dump_free=sys.maxsize, num_shards=parameters.num_shards)
    return plan
