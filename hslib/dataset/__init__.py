"""The rows of a dataset: samples fit to be extracted, and rejections with their reasons."""

from hslib.dataset.dataset import Dataset
from hslib.dataset.files import is_table, sniff
from hslib.dataset.mask import is_inverted
from hslib.dataset.row_check import check_row
from hslib.dataset.sample import (
    Limits,
    Rejection,
    RowInfo,
    Sample,
    Survey,
    count_reasons,
    first_of_each,
)
from hslib.dataset.source_name import absolute_source
from hslib.dataset.sources import read_rows

__all__ = [
    "absolute_source",
    "check_row",
    "count_reasons",
    "first_of_each",
    "Dataset",
    "is_inverted",
    "is_table",
    "Limits",
    "read_rows",
    "Rejection",
    "RowInfo",
    "Sample",
    "sniff",
    "Survey",
]
