"""Executed notebooks as HTML without code, fit to be sent."""

from hslib.notebook.report.index import write_reports
from hslib.notebook.report.page import Report, ReportError, write_report

__all__ = ["Report", "ReportError", "write_report", "write_reports"]
