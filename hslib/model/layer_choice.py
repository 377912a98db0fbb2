"""The parameter ``layers``: words and numbers, or a draft that names its layers in its config."""

import json
import re
from pathlib import Path
from typing import Any

from hslib.errors import ParameterError
from hslib.model.draft import Draft, parse_draft
from hslib.model.draft_layers import DraftLayers, layers_of
from hslib.model.folder import ModelInfo
from hslib.model.hub import local_folder
from hslib.model.layers import Boundaries, parse_layers

_OF_AN_EXPORT = "draft_config.json"  # what an export for SpecForge begins a draft with
_FIX = 'give a draft\'s folder, its config.json or its id in the hub, or numbers such as "3,31,59"'


def names_a_draft(layers: str) -> bool:
    """Whether ``layers`` is a path or an id of the hub, and not words or numbers."""
    text = layers.strip()
    return "/" in text or text.startswith(("~", ".")) or text.endswith(".json")


def choose_layers(layers: str, model: ModelInfo) -> Boundaries:
    """The parameter ``layers`` as ascending boundaries of a model.

    Raises:
        ParameterError: as :func:`parse_layers` does; no draft is there, or it does not say which
            layers of this model it reads.
    """
    if not names_a_draft(layers):
        return parse_layers(layers, model.num_layers)
    try:
        return draft_layers(layers, model).boundaries
    except ParameterError as error:
        raise _of("parameter 'layers'", error) from error


def draft_layers(path: str, model: ModelInfo) -> DraftLayers:
    """The boundaries that a draft asks for, and how they were found; raises as above."""
    draft = read_draft(path)
    try:
        return layers_of(draft, model)
    except ParameterError as error:
        raise _of(f"draft {path.strip()}", error) from error


def layers_source(layers: str, model: ModelInfo) -> dict[str, str]:
    """``{"layers from": the draft, and how its ids were read}`` for a table; empty for numbers."""
    if not names_a_draft(layers):
        return {}
    found = draft_layers(layers, model)
    return {"layers from": f"{layers}, {found.source}"}


def read_draft(path: str) -> Draft:
    """A draft's folder, its ``config.json``, or its id in the hub.

    Raises:
        ParameterError: nothing is there, it is not JSON, or it is no draft's.
    """
    try:
        return parse_draft(_config(path.strip()))
    except ParameterError as error:
        raise _of(f"draft {path.strip()}", error) from error


def _config(text: str) -> dict[str, Any]:
    found = Path(text).expanduser() if text.endswith(".json") else local_folder(text, "config")
    file = found / "config.json" if found.is_dir() else found
    if found.is_dir() and not file.exists() and (found / _OF_AN_EXPORT).exists():
        file = found / _OF_AN_EXPORT
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        what = "there is no config.json in it" if found.is_dir() else "it is not there"
        raise ParameterError(what, fix=_FIX) from None
    except (OSError, ValueError, RecursionError) as error:
        why = re.sub(r"\s+", " ", str(error))
        raise ParameterError(f"{file} can't be read as JSON: {why}", fix=_FIX) from error
    if not isinstance(config, dict):
        raise ParameterError(f"{file} is not a JSON object", fix=_FIX)
    return config


def _of(what: str, error: ParameterError) -> ParameterError:
    """The error, with what it is about before it."""
    return ParameterError(f"{what}: {error.message}", fix=error.fix or _FIX, **error.fields)
