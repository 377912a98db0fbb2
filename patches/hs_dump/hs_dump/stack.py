"""Where a running model has its decoder layers, final norm and head: found by structure."""

from dataclasses import dataclass

import torch

from hs_dump.norms import is_norm, norms_within

_NOT_TEXT = (
    "vision",
    "visual",
    "audio",
    "image",
    "video",
    "tower",
    "encoder",
    "talker",
    "code2wav",
)


class CaptureError(RuntimeError):
    """This model can't be made to capture the boundaries asked for."""


@dataclass(frozen=True)
class Stack:
    """A language model's parts."""

    name: str  # of the list of layers
    layers: list[torch.nn.Module]
    final_norms: dict[str, torch.nn.Module]  # beside the layers; one of them is the final norm
    processors: list[torch.nn.Module]  # where the head is applied


def find_stack(model: torch.nn.Module, num_layers: int, hidden_size: int) -> Stack:
    """The list of ``num_layers`` decoder layers of a model, whatever wraps it.

    Raises:
        CaptureError: with the model's class, when there is none or more than one.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessor

    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) == num_layers
        and not any(word in name.lower() for word in _NOT_TEXT)
        and norms_within(module[-1], hidden_size)
    }
    outer = {n: m for n, m in found.items() if not any(n.startswith(f"{o}.") for o in found)}
    if len(outer) != 1:
        seen = ", ".join(outer) or "none"
        raise CaptureError(
            f"{type(model).__name__}: its {num_layers} decoder layers of hidden size {hidden_size} "
            f"were not found (lists of layers that would fit: {seen})"
        )
    ((name, layers),) = outer.items()
    owner = model.get_submodule(name.rpartition(".")[0])
    beside = {n: m for n, m in owner.named_children() if is_norm(m, hidden_size)}
    processors = [m for m in model.modules() if isinstance(m, LogitsProcessor)]
    return Stack(name, list(layers), beside, processors)


def parse_boundaries(text: str, num_layers: int) -> tuple[int, ...]:
    """``"3,31,59"`` -> (3, 31, 59), each in 1..n; ``""`` -> none.

    They must ascend, since they are stored in the order of execution. n is the last layer's output
    before the final norm.

    Raises:
        CaptureError: not numbers, not ascending, or outside the model.
    """
    if not text.strip():
        return ()
    try:
        boundaries = tuple(int(part) for part in text.split(","))
    except ValueError:
        boundaries = (0, 0)
    if list(boundaries) != sorted(set(boundaries)):
        raise CaptureError(
            f"SGLANG_HS_DUMP_BOUNDARIES={text!r}: give ascending layer numbers such as 3,31,59"
        )
    outside = [b for b in boundaries if not 1 <= b <= num_layers]
    if outside:
        raise CaptureError(
            f"boundaries {outside} are outside 1..{num_layers} of this model; 0 is the embedding"
        )
    return boundaries
