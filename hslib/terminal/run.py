"""A notebook as papermill runs it, with its verdict in the terminal."""

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hslib.terminal.command import Command

INTERRUPTED = 130


class RunCommand(Command):
    """With papermill's ``-p NAME VALUE``, which typer has not: an option of two words, repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_joined(args)))


def _joined(words: Sequence[str]) -> Iterator[str]:
    """``-p NAME VALUE`` as one word."""
    rest = iter(words)
    for word in rest:
        if word == "-p":
            name, value = next(rest, ""), next(rest, None)
            if value is None or "=" in name:
                raise typer.BadParameter("-p takes two words: -p NAME VALUE")
            word += f"{name}={value}"
        yield word


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _mapping(text: str) -> dict[str, Any]:
    import yaml
    from papermill.iorw import NoDatesSafeLoader  # a date stays text

    try:
        found = yaml.load(text, Loader=NoDatesSafeLoader)
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{text!r} is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{text!r} has no names: write 'name: value'")
    return found


def run(
    notebook: Annotated[
        str, typer.Argument(metavar="NOTEBOOK", help="03, 03_extraction, or a path")
    ],
    parameters: Annotated[
        list[Any],
        typer.Option("-p", parser=_pair, metavar="NAME VALUE", help="a parameter, as papermill's"),
    ] = [],  # noqa: B006
    yaml_parameters: Annotated[
        list[Any],
        typer.Option("-y", parser=_mapping, metavar="YAML", help="parameters, lists among them"),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="the executed notebook; default: in run_dir"),
    ] = None,
) -> int:
    """Run a notebook with papermill; its verdict is printed here.

    Its parameters are listed by: papermill --help-notebook notebooks/03_extraction.ipynb.
    The executed notebook is kept in the run's directory, which is made. Exit code 1: a cell failed;
    130: interrupted.
    """
    from hslib.job import read_progress
    from hslib.notebook import execution
    from hslib.notebook.parameters import leave_notebooks_folder

    out = out and out.absolute()
    found = execution.find_notebook(notebook)
    leave_notebooks_folder()  # as the kernel does
    values = {name: value for given in yaml_parameters for name, value in given.items()}
    planned = execution.plan_run(found, {**values, **dict(parameters)}, out)
    print(f"{_shown(planned.notebook)} -> {_shown(planned.output)}", flush=True)
    if planned.notebook.stem.startswith("03"):
        run_dir = shlex.quote(_shown(planned.parameters.run_path))
        print(f"to follow it elsewhere: python -m hslib status {run_dir} --watch", flush=True)
        job = read_progress(planned.parameters.run_path)
        if job is not None and job.state == "finished":
            stored = f"{job.already_done + job.ok:,} of {job.asked:,} rows"
            print(f"the last job here has stored {stored}; unchanged ones are not sent again")
    try:
        with _terminated_as_interrupted():
            verdict = execution.execute(planned)
    except KeyboardInterrupt:
        print(
            "interrupted: run the same command again, a job goes on where it was", file=sys.stderr
        )
        return INTERRUPTED
    print(f"\n{verdict}\n\nthe executed notebook: {_shown(planned.output)}")
    return 0


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, as Slurm and containers send it, reaches the kernel as an interrupt, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shown(path: Path) -> str:
    """Relative where it lies below the working directory."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
