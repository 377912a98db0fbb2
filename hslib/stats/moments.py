"""Mean, spread and kurtosis from sums of powers.

Sums add up over samples. Float64 is exact enough: a state's mean is small beside its spread, so
that nothing is lost where one sum is subtracted from another.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """By state, float64 [L]. ``kurtosis``: 3 for a normal distribution, NaN for constants."""

    mean: Floats
    std: Floats
    kurtosis: Floats


def moments(powers: Floats) -> Moments:
    """Of values whose powers 0 to 4 sum up to ``powers``, float64 [5, L]."""
    n = np.maximum(powers[0], 1)
    mean, s2, s3, s4 = powers[1:] / n
    variance = np.maximum(s2 - mean**2, 0)
    fourth = np.maximum(s4 - 4 * mean * s3 + 6 * mean**2 * s2 - 3 * mean**4, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        kurtosis = np.where(variance > 0, fourth / variance**2, np.nan)
    return Moments(mean, np.sqrt(variance), kurtosis)
