"""A store as trainers read it: files for speculators or SpecForge.

``hslib.export.torch_dataset`` is for a trainer of one's own; it imports torch, so it is imported
by its own name.
"""

from hslib.export.drafters import DRAFTERS, Drafter, find_drafter, table_lines
from hslib.export.export import ExportReport, export_store
from hslib.export.format import Dtype, TrainerFormat
from hslib.export.roundtrip import read_back
from hslib.export.specforge import SpecForgeFormat
from hslib.export.speculators import SpeculatorsFormat

TRAINERS: dict[str, type[TrainerFormat]] = {
    "speculators": SpeculatorsFormat,
    "specforge": SpecForgeFormat,
}

__all__ = [
    "Drafter",
    "DRAFTERS",
    "Dtype",
    "export_store",
    "ExportReport",
    "find_drafter",
    "read_back",
    "SpecForgeFormat",
    "SpeculatorsFormat",
    "table_lines",
    "TrainerFormat",
    "TRAINERS",
]
