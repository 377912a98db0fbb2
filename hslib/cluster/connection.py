"""Joins a Ray cluster, or starts one here, and says what has room on it."""

import os
import socket
from typing import Any

from hslib.errors import ServerError

_OBJECT_STORE_BYTES = 256 << 20  # shards of ids are small; the rest of /dev/shm is for dumps


def connect(address: str, replicas: int) -> bool:
    """Join a cluster, or start one here for ``local``; whether this call did.

    Raises:
        ServerError: no cluster answers there.
    """
    import ray

    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", joined):
            raise ServerError(
                f"this process has joined the Ray cluster at {joined}, not the one at {address}",
                fix="restart the kernel, or use the same ray_address",
            )
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, replicas),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        return True
    require_listening(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error
    return True


def require_listening(address: str) -> None:
    """Raises :class:`ServerError` when nothing listens at ``HOST:PORT``: Ray tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto" and the like: Ray knows where
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ServerError:
    return ServerError(
        f"no Ray cluster answers at {address}: {error}",
        fix="ray start --head --port 6379 on one host, ray start --address HOST:6379 on the "
        "others, then ray_address = HOST:6379; or ray_address = 'local'",
    )


def demand(nodes: list[dict[str, Any]], tp_size: int) -> dict[str, float]:
    """What one replica asks of its node: GPUs where the cluster has any, else a CPU. Pure."""
    has_gpus = any(node["Resources"].get("GPU") for node in nodes)
    return {"GPU": float(tp_size)} if has_gpus else {"CPU": 1.0}


def room(nodes: list[dict[str, Any]], wanted: dict[str, float]) -> int:
    """How many replicas the living nodes could hold, each on one node. Pure."""
    return sum(
        min(int(node["Resources"].get(name, 0) // amount) for name, amount in wanted.items())
        for node in nodes
        if node["Alive"]
    )
