"""What can be known of a job's rows before a server is started, within seconds."""

from hslib.dataset import Dataset, Limits
from hslib.errors import DatasetError
from hslib.job.plan import rejections_sentence, require_few_rejections, require_masks
from hslib.model import placeholder_ids, read_model
from hslib.parameters import ExtractionParameters

_ROWS = 10_000  # checked before; one to two seconds
_UNKNOWN = 2**31  # a vocabulary or length that only the server knows


def dataset_of(parameters: ExtractionParameters, limits: Limits, limit: int = 0) -> Dataset:
    """The job's rows; ``limit``: at most so many of them, 0 = all that the job has."""
    least = min(filter(None, (limit, parameters.limit)), default=0)
    return Dataset(parameters.dataset_source, limits, least, parameters.mask_column)


def check_inputs(parameters: ExtractionParameters) -> None:
    """Look at the model's folder, every file of the dataset, and its first rows.

    Raises:
        ParameterError: the model's folder can't be read.
        DatasetError: there is no dataset, or none of the first rows can be extracted; if these are
            all rows, also when too many are rejected or have masks of zeros.
    """
    limits = Limits(_UNKNOWN, parameters.max_tokens or _UNKNOWN)
    if parameters.model_path or not parameters.server_urls:
        model = read_model(parameters.model_folder)
        limits = Limits(model.vocab_size, limits.max_tokens, placeholder_ids(model.path))
    survey = dataset_of(parameters, limits, _ROWS).survey()
    is_all = survey.num_rows < _ROWS
    if is_all or (parameters.strict and survey.rows):
        require_few_rejections(survey, parameters.max_rejected_share, parameters.strict)
    if is_all:
        require_masks(survey, parameters.max_zero_mask_share)
    elif not survey.rows:
        raise DatasetError(
            f"none of the first {_ROWS} rows can be extracted: {rejections_sentence(survey)}",
            fix=survey.rejections[0].fix,
        )
