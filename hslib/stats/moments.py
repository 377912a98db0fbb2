"""Mean, variance and kurtosis of a whole from those of its parts.

Merging is Pébay's pairwise update of central moments (Sandia report SAND2008-6212, eq. 1.5).
It does not subtract large numbers from each other, as sums of powers would.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Counts, means, and central sums ``sum((x - mean) ** k)``; float64 [L], by state."""

    count: Floats
    mean: Floats
    m2: Floats
    m3: Floats
    m4: Floats

    @classmethod
    def empty(cls, num_states: int) -> "Moments":
        zeros = np.zeros(num_states)
        return cls(zeros, zeros, zeros, zeros, zeros)

    @classmethod
    def from_sums(cls, count: Floats, s1: Floats, s2: Floats, s3: Floats, s4: Floats) -> "Moments":
        """From sums of powers, float64 [L]: exact enough within one sample."""
        n = np.maximum(count, 1)
        mean = s1 / n
        m2 = s2 - n * mean**2
        m3 = s3 - 3 * mean * s2 + 2 * n * mean**3
        m4 = s4 - 4 * mean * s3 + 6 * mean**2 * s2 - 3 * n * mean**4
        return cls(count, mean, np.maximum(m2, 0), m3, np.maximum(m4, 0))

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both together."""
        a, b = self.count, other.count
        n = np.maximum(a + b, 1)
        d = other.mean - self.mean
        m3 = self.m3 + other.m3 + d**3 * a * b * (a - b) / n**2
        m3 += 3 * d * (a * other.m2 - b * self.m2) / n
        m4 = self.m4 + other.m4 + d**4 * a * b * (a * a - a * b + b * b) / n**3
        m4 += 6 * d**2 * (a * a * other.m2 + b * b * self.m2) / n**2
        m4 += 4 * d * (a * other.m3 - b * self.m3) / n
        return Moments(
            a + b,
            (a * self.mean + b * other.mean) / n,
            self.m2 + other.m2 + d**2 * a * b / n,
            m3,
            m4,
        )

    @property
    def std(self) -> Floats:
        """Standard deviation over all values, float64 [L]."""
        return np.asarray(np.sqrt(self.m2 / np.maximum(self.count, 1)))

    @property
    def kurtosis(self) -> Floats:
        """Fourth standardised moment (3 for a normal distribution); NaN for constants."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.m2 > 0, self.count * self.m4 / self.m2**2, np.nan)
