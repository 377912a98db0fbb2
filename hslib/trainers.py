"""The trainers that a store can be written for, by name."""

from hslib.export import TrainerFormat
from hslib.export_specforge import SpecForgeFormat
from hslib.export_speculators import SpeculatorsFormat

NAMES: dict[str, type[TrainerFormat]] = {
    "speculators": SpeculatorsFormat,
    "specforge": SpecForgeFormat,
}
