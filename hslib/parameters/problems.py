"""What is wrong with given parameters, in sentences that have each one's name and value."""

import difflib
import types
import typing
from collections.abc import Iterable, Iterator

import pydantic


def unknown_name(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known := sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown parameter {name!r}: {hint}"


def bad_values(model: type[pydantic.BaseModel], error: pydantic.ValidationError) -> Iterator[str]:
    """A sentence per parameter, and per contradiction between several."""
    named = set()
    for found in error.errors():
        message = found["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        if not found["loc"]:
            yield message  # of several together: their input is all of the parameters
        elif (name := str(found["loc"][0])) not in named:  # one type of two is named twice
            named.add(name)
            kind = model.model_fields[name].annotation
            if typing.get_origin(kind) is types.UnionType:
                message = f"it should be {kind}".replace(" | ", " or ")
            if found["type"] in ("list_type", "dict_type"):
                message += f" (papermill takes one as -y '{name}: ...')"
            yield f"parameter {name!r} is {_short(found['input'])}: {message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def as_message(problems: list[str]) -> str:
    """All problems as one error's message."""
    if len(problems) == 1:
        return problems[0]
    return "\n  - ".join((f"{len(problems)} things are wrong with the parameters:", *problems))
