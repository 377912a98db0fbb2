"""speculators' own EAGLE-3 drafter on a CPU, trained on right and on misfiled states."""

from hslib.drafter.encodings import compare_encodings
from hslib.drafter.experiment import export_for, train_both
from hslib.drafter.figures import plot_experiment
from hslib.drafter.on_policy import train_on_own_answers

__all__ = [
    "compare_encodings",
    "export_for",
    "plot_experiment",
    "train_both",
    "train_on_own_answers",
]
