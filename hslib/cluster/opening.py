"""Starts the replicas of a job on a Ray cluster."""

import time
from collections import Counter
from collections.abc import Callable

from hslib.cluster.cluster import Cluster
from hslib.cluster.connection import connect, demand, room
from hslib.cluster.messages import of_replica
from hslib.cluster.replica import Replica
from hslib.errors import ServerError
from hslib.parameters import ExtractionParameters

_LEAST_WAIT_S = 120.0  # for the first replica to get room
_ROOM_S = 30.0  # how long a replica may wait for room before the job begins without it


def open_cluster(
    parameters: ExtractionParameters,
    on_progress: Callable[[str], None] = lambda _line: None,
    replica_class: type = Replica,
) -> Cluster:
    """Start and check the replicas, as many as the cluster has room for now.

    The others wait for room, and join the job when there is some.

    Raises:
        ServerError: no cluster, no room for a single replica, or none of them comes up.
    """
    import ray

    is_ours = connect(parameters.ray_address, parameters.num_replicas)
    wanted = demand(ray.nodes(), parameters.tp_size)
    if not room(ray.nodes(), wanted):
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if is_ours:
            ray.shutdown()
        raise ServerError(
            f"the cluster has no room for a replica: it needs {wanted} on one node",
            nodes=nodes,
            fix="lower tp_size, or add a node that has them",
        )
    actor_class = ray.remote(replica_class).options(
        num_cpus=wanted.get("CPU", 0),
        num_gpus=wanted.get("GPU", 0),
        max_concurrency=4,  # a shard, and what is asked meanwhile
        max_restarts=-1,
        scheduling_strategy="SPREAD",
    )
    cluster = Cluster(
        parameters.num_replicas,
        lambda number: actor_class.remote(number, of_replica(parameters, number)),
        is_ours,
    )
    try:
        _await_replicas(cluster, max(parameters.server_wait_s, _LEAST_WAIT_S), on_progress)
    except BaseException:
        cluster.close()
        raise
    on_progress(f"ready: {len(cluster.ready)} replicas came back right with a canary request")
    return cluster


def _await_replicas(cluster: Cluster, wait_s: float, on_progress: Callable[[str], None]) -> None:
    """Until all that have room are ready, one at least; a failed start is tried again.

    Raises:
        ServerError: none came up, or none got room in ``wait_s``; with their reasons.
    """
    for replica in cluster.replicas:
        cluster.start(replica)
    told, began_at = "", time.monotonic()
    changed_at = began_at
    while True:
        cluster.meet_starters(1.0)
        states = Counter(replica.state for replica in cluster.replicas)
        line = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        now = time.monotonic()
        if line != told:
            on_progress(f"replicas: {line}")
            told, changed_at = line, now
        waiting = states["waiting for room"]
        if len(cluster.ready) + cluster.given_up() + waiting < len(cluster.replicas):
            continue  # some are starting
        if not waiting or (cluster.ready and now - changed_at > _ROOM_S):
            break
        if not cluster.ready and now - began_at > wait_s:
            break
    if not cluster.ready:
        raise ServerError(
            f"no replica came up: {cluster.states()}",
            fix="see its server.log, and whether the cluster's nodes are in use",
        )
