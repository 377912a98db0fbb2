"""On-policy rows: the served model answers every user turn itself."""

from hslib.answers.making import answer_file, make_rows
from hslib.answers.regenerate import AnswerProgress, AnswerSettings

__all__ = ["answer_file", "AnswerProgress", "AnswerSettings", "make_rows"]
