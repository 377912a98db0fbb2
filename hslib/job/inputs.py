"""What can be known of a job's rows before a server is started, within seconds."""

from hslib.dataset import Dataset, Limits
from hslib.errors import DatasetError
from hslib.job.plan import rejections_sentence, require_few_rejections, require_masks
from hslib.model import placeholder_ids, read_model
from hslib.parameters import ExtractionParameters
from hslib.server import launch
from hslib.server.processes import is_alive

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


def check_inputs(parameters: ExtractionParameters) -> None:
    """Look at the model's folder, every file of the dataset, and its first rows.

    Raises:
        ParameterError: the model's folder can't be read.
        DatasetError: there is no dataset, or none of the first rows can be extracted; if these are
            all rows, also when too many are rejected or have masks of zeros.
    """
    limits = Limits(_UNKNOWN, parameters.max_tokens or _UNKNOWN)
    if parameters.model_path or not (parameters.server_urls or _has_server(parameters)):
        model = read_model(parameters.model_folder)
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
            fix=survey.rejections[0].fix,
        )
