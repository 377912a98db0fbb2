"""How many directions the states of a layer really use: PCA of tokens drawn from the store."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Spectrum:
    """``share`` float64 [K]: explained variance of each component, descending, sum 1.

    ``effective_rank`` is the exponential of the entropy of the singular values' shares
    (Roy and Vetterli 2007, "The effective rank"). Both are bounded by ``num_tokens - 1``.
    """

    share: NDArray[np.float64]
    effective_rank: float
    num_tokens: int

    def components_for(self, share: float) -> int:
        """How many components explain this share of the variance."""
        return int(np.searchsorted(np.cumsum(self.share), share * (1 - 1e-12)) + 1)


def spectrum(states: np.ndarray) -> Spectrum:
    """PCA of float32 [N, H]: eigenvalues of the smaller of the two Gram matrices.

    The drawn tokens fit into memory, so the PCA is exact on them and nothing is incremental.
    Products of tokens are float32, which errs in proportion to both tokens' norms, so that a few
    massive ones spoil nobody else's; sums over tokens would spoil all, and are float64.
    """
    import torch

    rows = torch.from_numpy(states)
    rows = rows - rows.mean(dim=0, dtype=torch.float64).to(torch.float32)
    if rows.shape[0] <= rows.shape[1]:
        gram = (rows @ rows.T).double()
    else:
        gram = rows.double().T @ rows.double()
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).numpy()
    values = values[: max(1, min(len(states) - 1, states.shape[1]))]
    total = values.sum()
    if not total > 0:
        return Spectrum(np.ones(1), 1.0, len(states))
    singular = np.sqrt(values)
    weights = singular[singular > 0] / singular.sum()
    rank = float(np.exp(-(weights * np.log(weights)).sum()))
    return Spectrum(values / total, rank, len(states))
