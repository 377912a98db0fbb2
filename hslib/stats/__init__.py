"""What is in a store, in numbers: no server, no GPU, one pass in bounded memory."""

from hslib.stats.compression import compare_compression, draw_states, recommend_compression
from hslib.stats.figures import (
    plot_compression,
    plot_lengths,
    plot_norms,
    plot_positions,
    plot_similarity,
    plot_spectrum,
    plot_throughput,
)
from hslib.stats.measure import measure
from hslib.stats.sizes import longest_allowed, outlook, size_facts
from hslib.stats.throughput import rate_summary, rates_over_time

__all__ = [
    "compare_compression",
    "draw_states",
    "longest_allowed",
    "measure",
    "outlook",
    "plot_compression",
    "plot_lengths",
    "plot_norms",
    "plot_positions",
    "plot_similarity",
    "plot_spectrum",
    "plot_throughput",
    "rate_summary",
    "rates_over_time",
    "recommend_compression",
    "size_facts",
]
