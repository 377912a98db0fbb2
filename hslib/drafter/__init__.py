"""speculators' own EAGLE-3 drafter on a CPU, trained on right and on misfiled states."""

from hslib.drafter.experiment import export_for, train_both
from hslib.drafter.figures import plot_experiment

__all__ = [
    "export_for",
    "plot_experiment",
    "train_both",
]
