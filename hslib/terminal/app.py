"""The commands together: their order in the help, and the exit code."""

from collections.abc import Sequence
from typing import Annotated

import typer

from hslib import __version__
from hslib.terminal.clean import clean
from hslib.terminal.command import Command
from hslib.terminal.diagnose import diagnose
from hslib.terminal.export import export
from hslib.terminal.layers import layers
from hslib.terminal.plan import plan
from hslib.terminal.recode import recode
from hslib.terminal.report import report
from hslib.terminal.rows import rows
from hslib.terminal.run import RunCommand, run
from hslib.terminal.status import status
from hslib.terminal.verify import verify

COMMANDS = (run, rows, plan, layers, status, clean, verify, diagnose, report, recode, export)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        app(arguments, prog_name="python -m hslib")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _exit(code: int, **_options: object) -> None:
    raise typer.Exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hslib {__version__}")
        raise typer.Exit


app = typer.Typer(
    result_callback=_exit,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _kit(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show it and exit"),
    ] = False,
) -> None:
    """The commands that a terminal needs beside the notebooks.

    Exit code 0: all is well (run: no cell failed); 1: it is not, or the command failed; 2: the
    command line is wrong.
    """


for command in COMMANDS:
    app.command(cls=RunCommand if command is run else Command)(command)
