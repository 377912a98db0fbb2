"""Are the stored states what the manifest says? Compared with the model itself, or a server."""

from hslib.probe.figures import error_table, head_table, layer_table, plot_errors, plot_head
from hslib.probe.run import (
    against_reference,
    conclude,
    plan_probe,
    probe_metrics,
    through_head,
)

__all__ = [
    "against_reference",
    "conclude",
    "error_table",
    "head_table",
    "layer_table",
    "plan_probe",
    "plot_errors",
    "plot_head",
    "probe_metrics",
    "through_head",
]
