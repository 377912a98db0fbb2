"""How a command fails: with the kit's error alone, in the words of the command's own options."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from hslib.errors import HslibError


class Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HslibError as error:
            print(in_options(str(error), options_of(ctx)), file=sys.stderr)
            raise typer.Exit(1) from None


def options_of(context: Any) -> dict[str, str]:
    """A command's options by the names of its function's arguments."""
    named = [(str(p.name), p.opts[-1]) for p in context.command.params]
    return {name: option for name, option in named if option.startswith("-")}


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Advice that names notebook parameters, with the command's options in their place. Pure.

    A name of one word is a parameter only where it is quoted or is given a value.
    """
    for name, option in options.items():
        word = re.escape(name)
        text = re.sub(rf"(?:parameter )?'{word}'", option, text)
        if "_" in name:
            text = re.sub(rf"(?<![\w/.'-]){word}(?![\w/.'=])", option, text)
        text = re.sub(rf"(?<![\w/.'-]){word} = ", f"{option} ", text)
    return text
