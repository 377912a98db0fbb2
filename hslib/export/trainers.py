"""The trainers that a store can be written for, by name."""

from hslib.export.export import TrainerFormat
from hslib.export.specforge import SpecForgeFormat
from hslib.export.speculators import SpeculatorsFormat

NAMES: dict[str, type[TrainerFormat]] = {
    "speculators": SpeculatorsFormat,
    "specforge": SpecForgeFormat,
}
