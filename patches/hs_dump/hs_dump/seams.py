"""Hooks in a running model: what enters a layer, what its mixer reads, what the head reads.

Instances are wrapped, not classes; and ``forward``, not ``__call__``, since some layers call
``mixer.forward(...)`` directly. While no pass is :attr:`Seen.active` a wrapper only calls the
original. An exception of a hook never reaches SGLang.
"""

import functools
import inspect
import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)

Hook = Callable[[dict[str, Any]], None]


class Seen:
    """What the running forward pass has shown.

    ``states``: ``[rows, H]`` by (place, seam), in storage that the model does not reuse. ``reads``:
    by (place, reader), the witnessed rows of a module's input, and their scale if they are
    quantised. A place is a boundary or ``"final"``. ``index``: int64 [S] on the model's device, the
    witnessed rows.
    """

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps  # False on ranks that do not write
        self.active = False
        self.rows = 0
        self.index: torch.Tensor | None = None
        self.states: dict[tuple[Any, str], torch.Tensor] = {}
        self.reads: dict[tuple[Any, str], tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.head: tuple[Any, Any] | None = None  # the LogitsProcessor and its lm_head
        self.problem = ""

    def begin(self, rows: int, index: torch.Tensor | None = None) -> None:
        self.clear()
        self.active, self.rows, self.index = True, rows, index

    def clear(self) -> None:
        self.active, self.index, self.problem, self.head = False, None, "", None
        self.states, self.reads = {}, {}

    def keep(self, place: Any, seam: str, value: Any, owned: bool) -> None:
        """Remember a state; copied unless it is ``owned``, as the model may reuse its storage."""
        if not self._keeps or not is_state(value, self.rows):
            return
        value = value[: self.rows]
        self.states[place, seam] = value if owned else value.clone()

    def read(self, place: Any, reader: str, value: Any) -> None:
        """Remember the witnessed rows of a module's input: a tensor, or (quantised, scale)."""
        found = _readable(value, self.rows)
        if found is None or self.index is None:
            return
        tensor, scale = found
        if scale is not None and scale.numel() > 1:
            scale = scale[: self.rows].index_select(0, self.index)
        self.reads[place, reader] = (_pick(tensor, self.index), scale)


def _pick(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if tensor.element_size() == 1:  # float8 has no index_select on some devices
        return tensor.view(torch.uint8).index_select(0, index).view(tensor.dtype)
    return tensor.index_select(0, index)


def is_state(value: Any, rows: int) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.ndim == 2
        and value.shape[0] >= rows
        and value.is_floating_point()
    )


def _readable(value: Any, rows: int) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """``(tensor, None)``, or ``(quantised, scale)``; of a fused norm's tuple the plain tensor."""
    if is_state(value, rows) and value.element_size() >= 2:
        return value, None
    if not isinstance(value, tuple):
        return None
    for part in value:
        if is_state(part, rows) and part.element_size() >= 2 and part.shape[1] > 1:
            # a scale [T, H / 128] is narrower than the states beside it
            widest = max(p.shape[-1] for p in value if isinstance(p, torch.Tensor) and p.ndim)
            if part.shape[1] == widest:
                return part, None
    for quantised, scale in itertools.pairwise(value):
        if (
            isinstance(quantised, torch.Tensor)
            and isinstance(scale, torch.Tensor)
            and quantised.ndim == 2
            and quantised.element_size() == 1
            and quantised.shape[0] >= rows
            and scale.is_floating_point()
        ):
            return quantised, scale
    return None


class Hooks:
    """The wrappers of one model; :meth:`remove` takes them all away."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def before(self, owner: Any, hook: Hook, method: str = "forward") -> None:
        """Call ``hook`` with the method's arguments by name, before the method."""

        def wrapped(original: Callable[..., Any], bound: dict[str, Any], *a: Any, **k: Any) -> Any:
            self._guard(hook, bound)
            return original(*a, **k)

        self._wrap(owner, method, wrapped)

    def after(self, owner: Any, hook: Callable[[Any], None]) -> None:
        """Call ``hook`` with what ``forward`` returned."""

        def wrapped(original: Callable[..., Any], _bound: dict[str, Any], *a: Any, **k: Any) -> Any:
            result = original(*a, **k)
            self._guard(hook, result)
            return result

        self._wrap(owner, "forward", wrapped)

    def stage(self, boundary: Any, place: Any) -> None:
        """Take the state that a stage boundary's ``prepare`` completes.

        The stage of an attention passes it to ``capture``; another stage leaves it in the batch's
        residual stream. With tensor parallelism ``capture`` may complete a sum over all ranks, so
        every rank must give one, in the same passes.
        """
        from sglang.srt.layers.layer_boundary.contracts import StageKind

        hands_over = boundary.kind is StageKind.ATTENTION

        def wrapped(original: Callable[..., Any], bound: dict[str, Any], *a: Any, **k: Any) -> Any:
            seen = self._seen
            if not hands_over:
                result = original(*a, **k)
                self._guard(_keep_written, seen, place, bound)
                return result
            others = k.pop("capture", None)

            def capture(value: Any, owned: bool = False) -> None:
                self._guard(seen.keep, place, "stage", value, owned)
                if others is not None:
                    others(value, owned=False)  # they must copy: this value is kept here

            return original(*a, capture=capture, **k)

        self._wrap(boundary, "prepare", wrapped)

    def _guard(self, hook: Callable[..., None], *arguments: Any) -> None:
        try:
            hook(*arguments)
        except Exception as error:
            logger.exception("hs_dump: a hook in the model failed")
            self._seen.problem = f"{type(error).__name__}: {error}"

    def _wrap(self, owner: Any, method: str, wrapped: Callable[..., Any]) -> None:
        original = getattr(owner, method)
        had_own = method in vars(owner)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._seen.active:
                return original(*args, **kwargs)
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return original(*args, **kwargs)  # raises what is wrong with the call
            return wrapped(original, flat(bound), *args, **kwargs)

        setattr(owner, method, call)
        self._undo.append(
            (lambda: setattr(owner, method, original))
            if had_own
            else (lambda: delattr(owner, method))
        )


def flat(bound: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with those inside ``*args`` and ``**kwargs``."""
    found: dict[str, Any] = {}
    for name, value in bound.items():
        if isinstance(value, dict):
            found |= value
        elif name == "args" and isinstance(value, tuple):
            found |= {f"args{n}": part for n, part in enumerate(value)}
        else:
            found[name] = value
    return found


def _keep_written(seen: Seen, place: Any, bound: dict[str, Any]) -> None:
    stream = getattr(bound.get("forward_batch"), "residual_stream", None)
    seen.keep(place, "stage", getattr(stream, "residual", None), owned=False)


def stage_of(layer: torch.nn.Module) -> Any | None:
    """The boundary of a layer's first stage, which completes the stream that enters the layer."""
    try:
        from sglang.srt.layers.layer_boundary.stage import StageBoundary
    except ImportError:
        return None
    found = [value for value in vars(layer).values() if isinstance(value, StageBoundary)]
    attention = [value for value in found if value.kind.name == "ATTENTION"]
    return next(iter(attention or found), None)


def entering(bound: dict[str, Any], rows: int) -> tuple[Any, Any]:
    """``(hidden_states, residual)`` among a call's arguments; None for what is not there.

    A layer names its residual; a norm takes the pair in this order, by position.
    """
    states = {name: value for name, value in bound.items() if is_state(value, rows)}
    hidden = next((n for n in states if "residual" not in n), None)
    residual = next((n for n in states if n == "residual"), None)
    if residual is None and hidden == "args0":
        residual = "args1"
    return states.get(hidden or ""), states.get(residual or "")
