"""The shards of a job as tasks on Ray."""

from hslib.cluster.cluster import Cluster
from hslib.cluster.shard_run import ShardRun

__all__ = [
    "Cluster",
    "ShardRun",
]
