"""What is in a store, as tables: one pass in bounded memory, no server, no GPU."""

from hslib.stats.sampling import Sampling
from hslib.stats.store import StoreStats, measure

__all__ = ["Sampling", "StoreStats", "measure"]
