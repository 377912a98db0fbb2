"""A replica that joins a job later must serve what the first one serves; without Ray."""

from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from hslib.cluster import cluster
from hslib.cluster.cluster import Cluster
from hslib.cluster.messages import ReplicaFacts
from hslib.model import take_canary
from hslib.server.check import ServerCheck
from hslib.server.plugin_info import PluginInfo


def facts_of(longest_row: int = 100, seed: int = 0, **plugin: Any) -> ReplicaFacts:
    """Of a replica that was checked; its canary's states are drawn from ``seed``."""
    drawn = np.random.default_rng(seed).standard_normal((24, 4, 16), np.float32)
    known = {"pid": 1, "plugin_version": "", "sglang_version": "", "written_at": 0}
    weights = {"model.layers.3": "same", "model.layers.4": "same"}
    shape = {"boundaries": (1, 3, 5), "num_layers": 6}
    info = PluginInfo(**{**known, **shape, "weights": weights, **plugin})
    canary = take_canary((drawn.view(np.uint32) >> 16).astype(np.uint16))
    check = ServerCheck(info, None, canary)  # type: ignore[arg-type]
    return ReplicaFacts("host", 1, check, longest_row, dump_room_bytes=1)


def starts_with(found: Cluster, number: int, facts: ReplicaFacts) -> str:
    """What becomes of a replica at its last start, in a job whose longest row has 100 tokens."""
    replica = found.replicas[number]
    replica.starts = cluster.MOST_STARTS
    found.starting["call"] = replica
    with patch.object(cluster, "answer_of", lambda _call: facts):
        found.started("call", longest_row=100)
    return replica.state


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (facts_of(longest_row=99), "it takes 99 tokens, the job's longest row has 100"),
        (
            facts_of(weights={"model.layers.3": "same", "model.layers.4": "another"}),
            "weights of model.layers.4 (1 of 2 groups) differ",
        ),
        (facts_of(seed=1), "canary's states (the weights' files are the same"),
        (facts_of(boundaries=(1, 3, 4)), "replica 1 serves something else than the first"),
    ],
    ids=["too short", "weights", "canary", "layers"],
)
def test_a_late_replica_that_serves_something_else_is_refused(
    late: ReplicaFacts, said: str
) -> None:
    found, right = Cluster(2, lambda _number: Mock(), is_ours=False), facts_of()
    assert starts_with(found, 0, right) == "ready"
    state = starts_with(found, 1, late)
    assert state.startswith("given up") and said in state
    assert found.ready == [right]
    assert starts_with(found, 1, right) == "ready"
    assert found.ready == [right, right]
