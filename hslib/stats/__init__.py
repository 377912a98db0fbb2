"""What is in a store, as tables: one pass in bounded memory, no server, no GPU."""

from hslib.stats.measure import StoreStats, measure
from hslib.stats.sampling import Sampling

__all__ = ["Sampling", "StoreStats", "measure"]
