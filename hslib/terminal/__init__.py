"""The terminal's commands, a module each; what is heavy is imported when a command runs."""

from hslib.terminal.app import app, main

__all__ = ["app", "main"]
