"""Which parameters a checkpoint did not fill: marked before the load, looked for after it.

SGLang does not say what a checkpoint lacks: a parameter without a tensor keeps whatever its memory
held. This module knows torch's modules and SGLang's fused layers, and no files.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from typing import Any

import torch

logger = logging.getLogger(__name__)

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Marked positions per dimension, by the number of dimensions: enough to hit the smallest part of a
# fused tensor (key heads beside query heads). Of three dimensions the first is the experts.
_POSITIONS = {1: (512,), 2: (192, 48), 3: (1024, 32, 4)}
_SCALE = re.compile(r"(scales?|scale_inv|scale_2|zeros|zero_points?|g_idx)$")
# Checkpoints may lack these: SGLang has a default, or measures them while it serves.
_OPTIONAL = re.compile(r"(^|[._])(input|k|v|q|kv|prob|attn|o)_(global_)?scale(_inv)?$")
# Made, and never used in a forward pass (SGLang 0.5.23, models/falcon_h1.py).
_UNUSED = {"FalconH1ForCausalLM": re.compile(r"\.[qk]_norm\.weight$")}


@dataclass(frozen=True)
class Missing:
    """A parameter that no tensor filled, or a part of it (``""``: all of it)."""

    name: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {f'{self.part} ' if self.part else ''}never loaded"


@dataclass(frozen=True)
class _Mark:
    """One parameter's marked points: a grid of positions, with the bits before and after."""

    axes: tuple[torch.Tensor, ...]  # positions per dimension, shaped to broadcast over the grid
    original: torch.Tensor  # integer bits, [grid]
    pattern: torch.Tensor  # integer bits, [grid]
    identity: tuple[Any, ...]


class Marks:
    """Marks in every parameter of a model, from the constructor until :meth:`lift`.

    Some thousand points of a parameter are marked, spread over its rows. Points that the load does
    not overwrite get their old values back, so that padding keeps its values.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._marks = model, dict[str, _Mark]()
        self.unmarked: list[str] = []  # parameters of a kind that can't be marked
        for name, parameter in model.named_parameters():
            try:
                mark = _plant(parameter, seed=len(self._marks))
            except (RuntimeError, NotImplementedError, KeyError) as error:
                logger.warning("hs_dump: %s can't be marked: %s", name, error)
                self.unmarked.append(name)
                continue
            if mark is not None:
                self._marks[name] = mark

    def lift(self) -> list[Missing]:
        """Restore what is still marked; returns what was never written, in the model's order."""
        found: dict[str, list[Missing]] = {}
        parameters = dict(self._model.named_parameters())
        owners = dict(self._model.named_modules())
        # backwards: of two parameters on one storage the first marked has the true values
        for name, mark in reversed(self._marks.items()):
            parameter = parameters.get(name)
            if parameter is None or _identity(parameter) != mark.identity:
                continue  # the loader has put another tensor in its place
            bits = _bits_of(parameter)
            now = bits[mark.axes]
            held = now == mark.pattern
            bits[mark.axes] = torch.where(held, mark.original, now)
            if not bool(held.any()):
                continue
            owner = owners[name.rpartition(".")[0]]
            found[name] = list(_missing(name, parameter, owner, mark.axes, held.cpu()))
        self._marks = {}
        return [missing for name in parameters for missing in found.get(name, ())]


def _plant(parameter: torch.nn.Parameter, seed: int) -> _Mark | None:
    """Mark one parameter; None for one without memory of its own yet."""
    if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta or not parameter.numel():
        return None
    bits = _bits_of(parameter)
    most = _POSITIONS.get(bits.ndim, (64, 16) + (4,) * (bits.ndim - 2))
    positions = [_spread(size, count) for size, count in zip(bits.shape, most, strict=False)]
    axes = tuple(
        places.reshape([-1 if i == axis else 1 for i in range(bits.ndim)]).to(bits.device)
        for axis, places in enumerate(positions)
    )
    shape = [len(places) for places in positions]
    pattern = _pattern(shape, bits.dtype, seed).to(bits.device)
    mark = _Mark(axes, bits[axes].clone(), pattern, _identity(parameter))
    bits[axes] = pattern
    return mark


def _bits_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The parameter's memory as integers, of its own shape."""
    with torch._C.DisableTorchFunctionSubclass():
        data = parameter.data
        return data if data.dtype == _BITS[data.element_size()] else data.view(_bits_type(data))


def _bits_type(data: torch.Tensor) -> torch.dtype:
    return _BITS[data.element_size()]


def _identity(parameter: torch.nn.Parameter) -> tuple[Any, ...]:
    """Changes when a loader replaces the parameter; keeps no reference to its memory."""
    return parameter.data_ptr(), parameter.dtype, tuple(parameter.shape)


def _spread(size: int, most: int) -> torch.Tensor:
    """At most ``most`` ascending positions of ``0 .. size - 1``, both ends among them. int64."""
    if size <= most:
        return torch.arange(size)
    return torch.linspace(0, size - 1, most, dtype=torch.float64).round().long()


def _pattern(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Bits that no checkpoint holds at these points by chance.

    As floating point they are finite and next to zero, so they do no harm if a loader computes with
    padding.
    """
    # as bf16, f32 and f64 about 1e-38 and smaller; as fp8 any finite positive number
    top = {torch.uint8: 0x7B, torch.int16: 0x01FF, torch.int32: 0x01FFFFFF, torch.int64: 1 << 55}
    generator = torch.Generator(device="cpu").manual_seed(0x5EED + seed)
    with torch.device("cpu"):  # loaders set another default
        wide = torch.randint(1, top[dtype], tuple(shape), generator=generator, dtype=torch.int64)
    return wide.to(dtype)


def _missing(
    name: str,
    parameter: torch.nn.Parameter,
    owner: torch.nn.Module,
    axes: Sequence[torch.Tensor],
    held: torch.Tensor,
) -> Iterator[Missing]:
    """What of a parameter never came.

    Parts are what single tensors of a checkpoint fill: the projections of a fused linear layer, the
    experts of a fused MoE and their halves. Other gaps are padding.

    Args:
        held: bool [grid], where the mark is still there.
    """
    if bool(held.all()):
        yield Missing(name)
        return
    if _SCALE.search(name):
        return  # a tensor that is fused on disk has one scale, and fills only the first place
    axis = int(getattr(parameter, "output_dim", None) or 0)
    if parameter.ndim and hasattr(owner, "num_local_experts"):
        yield from _missing_experts(name, parameter, owner, axes, held)
    elif axis < parameter.ndim:
        sizes: Any = getattr(owner, "output_partition_sizes", None)
        sizes = sizes or getattr(owner, "output_sizes", None) or ()
        size = parameter.shape[axis]
        for start, stop in _parts(tuple(sizes), size):
            if _is_held(held, axes, axis, start, stop):
                kind = "rows" if axis == 0 else "columns"
                yield Missing(name, f"{kind} {start}..{stop - 1} of {size}")


def _missing_experts(
    name: str,
    parameter: torch.nn.Parameter,
    owner: torch.nn.Module,
    axes: Sequence[torch.Tensor],
    held: torch.Tensor,
) -> Iterator[Missing]:
    if parameter.shape[0] != owner.num_local_experts:
        return
    rows = parameter.shape[1] if parameter.ndim > 1 else 1
    is_pair = name.rpartition(".")[2].startswith("w13") and rows > 1
    halves = ((0, rows // 2), (rows // 2, rows)) if is_pair else ()
    for number in range(len(held)):
        expert = f"local expert {int(axes[0].flatten()[number])}"
        if bool(held[number].all()):
            yield Missing(name, expert)
            continue
        for start, stop in halves:
            inside = [axis[0] for axis in axes[1:]]
            if _is_held(held[number], inside, 0, start, stop):
                yield Missing(name, f"{expert} rows {start}..{stop - 1} of {rows}")


def _parts(sizes: tuple[int, ...], size: int) -> list[tuple[int, int]]:
    """Each projection's rows, ``(start, stop)``; scaled down where a packed tensor has fewer."""
    if len(sizes) < 2:
        return []
    ends = [round(end * size / sum(sizes)) for end in accumulate(sizes, initial=0)]
    return [(start, stop) for start, stop in pairwise(ends) if stop > start]


def _is_held(
    held: torch.Tensor, axes: Sequence[torch.Tensor], axis: int, start: int, stop: int
) -> bool:
    """Whether every marked point with ``start <= position < stop`` on ``axis`` is untouched."""
    places = axes[axis].flatten().cpu()
    inside = (places >= start) & (places < stop)
    return bool(inside.any()) and bool(held.movedim(axis, 0)[inside].all())


def at_fault(
    missing: Iterable[Missing], checkpoint: Sequence[str], model_class: str = ""
) -> list[Missing]:
    """Without what a checkpoint may lack. Pure.

    Args:
        checkpoint: the names of its tensors.
    """
    unused = _UNUSED.get(model_class)
    is_quantized = any(_SCALE.search(name) for name in checkpoint)
    return [
        found
        for found in missing
        if not _OPTIONAL.search(found.name)
        # scales of a quantisation that SGLang itself makes of plain weights
        and (is_quantized or not _SCALE.search(found.name))
        and not (unused and unused.search(found.name))
    ]


def is_accepted(found: Missing, patterns: Sequence[str]) -> bool:
    """Whether a name or a shell pattern (``model.layers.*.bias``) accepts it."""
    return any(fnmatchcase(found.name, pattern) for pattern in patterns)


def explain(missing: Sequence[Missing], checkpoint: Sequence[str]) -> str:
    """The error's text: what is missing, and what the checkpoint may call it. Pure."""
    lines = [_join(alike) for alike in _by_kind(missing)]
    shown = lines[:_MOST] + ([f"and {len(lines) - _MOST} more kinds"] if lines[_MOST:] else [])
    hints = _hints(missing, checkpoint)
    patterns = ",".join(dict.fromkeys(_starred(found.name) for found in missing))
    return (
        "the checkpoint lacks tensors, or SGLang passes them over: "
        + "; ".join(shown)
        + (f" (in the checkpoint {'; '.join(hints[:_MOST])})" if hints else "")
        + ". Fetch the whole checkpoint, or correct the tensor's name; if the model is right "
        f"without it, set SGLANG_HS_DUMP_ACCEPT_MISSING={patterns} before the server starts"
    )


_MOST = 8  # names of a kind in one error


def _starred(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _by_kind(missing: Sequence[Missing]) -> list[list[Missing]]:
    kinds = defaultdict[tuple[str, str], list[Missing]](list)
    for found in missing:
        kinds[_starred(found.name), _starred(found.part)].append(found)
    return list(kinds.values())


def _join(alike: Sequence[Missing]) -> str:
    """``model.layers.0.x.weight and 5 more like it (layers 1, 2, 3, 4, 5): never loaded``."""
    if len(alike) == 1:
        return str(alike[0])
    others = [_number(found.name) for found in alike[1:]]
    if len(set(others)) < len(others) or None in others:  # several parts of one parameter
        return "; ".join(map(str, alike[:_MOST])) + (
            f"; and {len(alike) - _MOST} more like it" if len(alike) > _MOST else ""
        )
    first, numbers = alike[0], ", ".join(map(str, others[:_MOST]))
    more = ", ..." if len(others) > _MOST else ""
    part = f"{first.part} " if first.part else ""
    return (
        f"{first.name} and {len(others)} more like it (layers {numbers}{more}): {part}never loaded"
    )


def _number(name: str) -> int | None:
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else None


def _hints(missing: Sequence[Missing], checkpoint: Sequence[str]) -> list[str]:
    """For each layer concerned, what it lacks beside the most similar layer of the checkpoint."""
    layers = defaultdict[tuple[str, int], set[str]](set)
    for name in checkpoint:
        if split := re.match(r"(.*?)\.(\d+)\.(.*)", name):
            layers[split[1], int(split[2])].add(split[3])
    hints = []
    for number in sorted({n for found in missing if (n := _number(found.name)) is not None}):
        for (stem, index), own in sorted(layers.items()):
            others = {k: v for k, v in layers.items() if k[0] == stem and k[1] != number}
            if index != number or not others:
                continue
            nearest = max(others, key=lambda key: len(others[key] & own) - len(others[key] ^ own))
            lacks, alone = sorted(others[nearest] - own), sorted(own - others[nearest])
            if lacks:
                hints.append(
                    f"{stem}.{number} lacks {', '.join(lacks[:_MOST])}, which {stem}.{nearest[1]} "
                    "has" + (f", but has {', '.join(alone[:_MOST])}: renamed?" if alone else "")
                )
    return hints
