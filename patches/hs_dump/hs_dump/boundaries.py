"""Make a SGLang model capture exact boundaries, whatever its own layer numbering does.

Boundary b is the index into transformers' ``hidden_states``: the residual stream that
enters decoder layer b. Every model family has another rule between its command line and
``layers_to_capture``, but that attribute of the inner model holds boundaries in all of
them, so it is set here and read back. Qwen2/3-MoE and Qwen3-Next look at a flag on each
layer instead (SGLang 0.5.23, ``models/qwen2_moe.py``); both are kept in step.
"""

from collections.abc import Sequence
from typing import Any

_FLAG = "_is_layer_to_capture"
_WRAPPERS = ("language_model", "model", "thinker", "text_model")


class CaptureError(RuntimeError):
    """This model can't be made to capture the boundaries asked for."""


def parse_boundaries(text: str) -> tuple[int, ...]:
    """``"3,31,59"`` -> (3, 31, 59); they must ascend, as execution order decides tensor order."""
    try:
        boundaries = tuple(int(part) for part in text.split(","))
    except ValueError:
        boundaries = ()
    if not boundaries or list(boundaries) != sorted(set(boundaries)):
        raise CaptureError(
            f"SGLANG_HS_DUMP_BOUNDARIES={text!r}: give ascending layer numbers such as 3,31,59"
        )
    return boundaries


def find_inner(model: Any) -> Any:
    """Follow wrappers (Kimi-K2.5's ``language_model``) to the module that owns the layers.

    Raises:
        CaptureError: with the model's class, when no such module is inside.
    """
    seen, module = [], model
    while module is not None:
        seen.append(type(module).__name__)
        if hasattr(module, "layers") and hasattr(module, "layers_to_capture"):
            return module
        module = next((getattr(module, name) for name in _WRAPPERS if hasattr(module, name)), None)
    raise CaptureError(
        f"{type(model).__name__}: no module with layers_to_capture inside ({' > '.join(seen)}). "
        "This model family has no aux-state capture in SGLang."
    )


def _capture_is_on(model: Any) -> bool:
    while model is not None:
        if getattr(model, "capture_aux_hidden_states", False):
            return True
        model = next((getattr(model, name) for name in _WRAPPERS if hasattr(model, name)), None)
    return False


def set_boundaries(model: Any, boundaries: Sequence[int]) -> tuple[int, ...]:
    """Make ``model`` capture ``boundaries`` and return what it reads back as.

    Called after SGLang's own setter ran (``--enable-return-aux-hidden-states``).

    Raises:
        CaptureError: naming the class, when the model can't or reads back otherwise.
    """
    inner = find_inner(model)
    num_layers = len(inner.layers)
    outside = [b for b in boundaries if not 1 <= b < num_layers]
    if outside:
        raise CaptureError(
            f"{type(model).__name__}: boundaries {outside} are outside 1..{num_layers - 1}. "
            f"0 is the embedding; {num_layers} is the last layer's output, whose normed form "
            "is stored as final anyway."
        )
    if not _capture_is_on(model):
        raise CaptureError(
            f"{type(model).__name__}: aux capture is off. Start the server with "
            "--enable-return-aux-hidden-states --speculative-algorithm EAGLE3."
        )
    by_flag = any(getattr(layer, _FLAG, False) for layer in inner.layers)
    inner.layers_to_capture = list(boundaries)
    if by_flag:
        for index, layer in enumerate(inner.layers):
            setattr(layer, _FLAG, index in boundaries)
    found = read_boundaries(inner)
    if found != tuple(boundaries):
        raise CaptureError(
            f"{type(model).__name__}: asked for boundaries {list(boundaries)}, "
            f"the model reads back {list(found)}"
        )
    return found


def read_boundaries(inner: Any) -> tuple[int, ...]:
    """The boundaries that the inner model will capture, from its own attributes."""
    flagged = tuple(i for i, layer in enumerate(inner.layers) if getattr(layer, _FLAG, False))
    listed = tuple(inner.layers_to_capture)
    if flagged and flagged != listed:
        raise CaptureError(
            f"{type(inner).__name__}: layers_to_capture is {list(listed)} "
            f"but the flagged layers are {list(flagged)}"
        )
    return listed
