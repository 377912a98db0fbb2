"""The output head as a witness of the final state: some logits, recomputed in float32."""

from typing import Any, NamedTuple

import numpy as np
import torch

_COLUMNS = 128  # of the vocabulary; each is a full dot product with the state


class Head(NamedTuple):
    """A few rows of the output head, and how the server scales their logits."""

    columns: torch.Tensor  # int64 [C], on the model's device: which logits are looked at
    weight: np.ndarray  # float32 [C, H]
    bias: np.ndarray | None  # float32 [C]
    scale: float
    softcap: float  # 0 = none

    def logits(self, states: np.ndarray) -> np.ndarray:
        """float32 ``[S, C]`` of float32 ``[S, H]``."""
        # not @: BLAS would start threads, which spin long after so small a product
        found = np.einsum("sh,ch->sc", states, self.weight)
        if self.bias is not None:
            found = found + self.bias
        found = found * self.scale
        if self.softcap:
            found = np.tanh(found / self.softcap) * self.softcap
        return np.asarray(found)


def head_of(processor: Any, lm_head: Any, hidden_size: int, vocab_size: int) -> Head | str:
    """The head that a ``LogitsProcessor`` was called with, or why it can't be a witness.

    With tensor parallelism rank 0 holds the first part of the vocabulary: only that is checked.
    """
    weight = getattr(lm_head, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return "the head has no weight matrix"
    if not weight.is_floating_point() or weight.element_size() < 2:
        return f"the head's weight is {weight.dtype}"
    if weight.shape[1] != hidden_size:
        return f"the head's weight is {list(weight.shape)}"
    rows = min(weight.shape[0], vocab_size)
    columns = torch.linspace(0, rows - 1, min(_COLUMNS, rows), device=weight.device).long()
    bias = getattr(lm_head, "bias", None)
    return Head(
        columns,
        weight.detach()[columns].float().cpu().numpy(),
        bias.detach()[columns].float().cpu().numpy() if isinstance(bias, torch.Tensor) else None,
        float(getattr(processor, "logit_scale", None) or 1.0),
        float(getattr(processor, "final_logit_softcapping", None) or 0.0),
    )
