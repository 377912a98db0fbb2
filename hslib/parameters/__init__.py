"""The notebooks' parameters as pydantic models; an unknown name is an error.

A notebook's ``parameters`` cell has the same names and defaults; a test compares them.
"""

from hslib.parameters.analysis import (
    DiagnosisParameters,
    ExportParameters,
    ProbeParameters,
    StatisticsParameters,
)
from hslib.parameters.base import (
    CaptureParameters,
    DatasetParameters,
    KeyParameters,
    Parameters,
    StoreParameters,
    TrackedParameters,
    dump_path,
    read_api_key,
)
from hslib.parameters.extraction import ExtractionParameters
from hslib.parameters.rows import RowsParameters
from hslib.parameters.server import ServerParameters

__all__ = [
    "CaptureParameters",
    "DatasetParameters",
    "DiagnosisParameters",
    "ExportParameters",
    "ExtractionParameters",
    "KeyParameters",
    "Parameters",
    "ProbeParameters",
    "RowsParameters",
    "ServerParameters",
    "StatisticsParameters",
    "StoreParameters",
    "TrackedParameters",
    "dump_path",
    "read_api_key",
]
