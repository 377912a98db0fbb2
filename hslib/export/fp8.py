"""speculators' ``fp8`` layout: one scale per token over all of its states.

``hidden_states`` float8_e4m3fn [T, K + 1, H] and ``hidden_states_scales`` float32 [T, 1, 1], as
``hs_connectors/fp8_utils.py`` of speculators 0.9.0 makes and reads them: the scale maps the token's
largest magnitude to 448. A state of large norm costs the small ones beside it precision.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCALES = "hidden_states_scales"
_LARGEST = 448.0  # of float8_e4m3fn
_SMALLEST_SCALE = 1e-12


def quantise(states: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """bf16 [T, L, H] -> float8_e4m3fn [T, L, H] and float32 [T, 1, 1]."""
    import torch

    wide = states.float()
    scales = (wide.abs().amax((1, 2), keepdim=True) / _LARGEST).clamp(min=_SMALLEST_SCALE)
    return (wide / scales).to(torch.float8_e4m3fn), scales


def dequantise(packed: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """The states as speculators' reader gives them, bf16 [T, L, H]."""
    import torch

    return packed.to(torch.bfloat16) * scales.to(torch.bfloat16)


def relative_errors(states: "torch.Tensor", read: "torch.Tensor") -> list[float]:
    """``|read - states| / |states|`` (Frobenius over tokens) of each of the L states."""
    wide = states.float()
    size = wide.norm(dim=(0, 2)).clamp(min=1e-30)
    return [float(error) for error in (read.float() - wide).norm(dim=(0, 2)) / size]


def open_dataset(export: Path, **options: Any) -> Any:
    """The installed speculators' ``ArrowDataset`` of an export, in this layout or in bf16.

    Args:
        options: more of the dataset's own, such as ``split``.
    """
    from hs_connectors.transfer import FP8Transfer  # it gives other files as they are
    from speculators.train.data import ArrowDataset

    transfer = FP8Transfer(export / "hidden_states")
    return ArrowDataset(2**20, export, transfer=transfer, on_missing="raise", **options)
