"""speculators' own EAGLE-3 drafter on a CPU, trained on right and on misfiled states."""

from hslib.drafter.experiment import Experiment, TrainedDrafter, export_for, train_both
from hslib.drafter.figures import plot_experiment
from hslib.drafter.misfiled import misfile

__all__ = [
    "Experiment",
    "export_for",
    "misfile",
    "plot_experiment",
    "train_both",
    "TrainedDrafter",
]
