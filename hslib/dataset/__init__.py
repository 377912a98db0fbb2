"""The rows of a dataset: samples fit to be extracted, and rejections with their reasons."""

from hslib.dataset.dataset import Dataset
from hslib.dataset.files import read_rows, sniff
from hslib.dataset.row_check import check_row
from hslib.dataset.sample import Limits, Rejection, RowInfo, Sample, Survey

__all__ = [
    "check_row",
    "Dataset",
    "Limits",
    "read_rows",
    "Rejection",
    "RowInfo",
    "Sample",
    "sniff",
    "Survey",
]
