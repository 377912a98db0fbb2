"""What a notebook needs around hslib's calls: parameters, tables, figures kept, live progress."""

from hslib.notebook.display import save_figure, save_metrics
from hslib.notebook.job_view import job_bar, rows_asked, show_job
from hslib.notebook.live import progress_bar, progress_line
from hslib.notebook.parameters import read_parameters
from hslib.notebook.row_picker import row_picker
from hslib.notebook.tables import long_table, rounded, table, wide
from hslib.notebook.verdict import verdict

__all__ = [
    "job_bar",
    "long_table",
    "progress_bar",
    "progress_line",
    "read_parameters",
    "rounded",
    "row_picker",
    "rows_asked",
    "save_figure",
    "save_metrics",
    "show_job",
    "table",
    "verdict",
    "wide",
]
