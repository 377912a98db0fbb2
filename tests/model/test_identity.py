"""Which model is it? Two canaries compared, and what outranks what."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from make.reference import reference_states
from make.stores import manifest

from hslib import demo
from hslib.errors import ServerError
from hslib.model import Canary, canary_ids, model_differences, take_canary
from hslib.model.identity import distances, tolerance
from hslib.server.check import ServerCheck, differences, require_same
from hslib.server.plugin_info import PluginInfo
from hslib.store import Manifest
from hslib.store.manifest import differing_fields

BOUNDARIES = (2, 5, 7)


@pytest.fixture(scope="module")
def states() -> torch.Tensor:
    """The demo's own, float32 [24, 4, H]."""
    found = reference_states(demo.model_path(), canary_ids(768))
    return torch.stack([found[b] for b in (*BOUNDARIES, -1)], 1)


def canary(states: torch.Tensor) -> Canary:
    return take_canary(states.bfloat16().view(torch.int16).numpy().view(np.uint16))


def off_by(states: torch.Tensor, share: float, number: int) -> torch.Tensor:
    """Each token's state changed by a ``share`` of its norm."""
    noise = torch.randn(states[:, number].shape, generator=torch.Generator().manual_seed(1))
    length = states[:, number].norm(dim=1) / noise.norm(dim=1)
    changed = states.clone()
    changed[:, number] += noise * share * length[:, None]
    return changed


def test_the_fixed_ids_are_the_same_for_ever_and_in_the_vocabulary() -> None:
    assert canary_ids(1000)[:4].tolist() == [618, 236, 854, 472]
    for size in (2, 24, 151_936, 2**31 - 1):
        ids = canary_ids(size)
        assert ids.dtype == np.int32
        assert 0 <= ids.min() <= ids.max() < size


def test_the_directions_are_the_same_for_ever() -> None:
    """Or no store could be resumed with the next NumPy."""
    one = np.full((1, 1, 64), 0x3F80, np.uint16)  # ones, in bfloat16
    norms, projections = take_canary(one).vectors()
    assert norms.tolist() == [[8.0]]
    assert projections[0, 0, :3] == pytest.approx([-0.6104, -0.3628, -2.7793], abs=0.001)


@pytest.mark.parametrize("share", [0.005, 0.01, 0.05, 0.2])
def test_a_distance_is_about_the_share_of_the_state_that_changed(
    states: torch.Tensor, share: float
) -> None:
    found = distances(canary(states), canary(off_by(states, share, 1)))
    assert found[1] == pytest.approx(share, rel=0.35)
    assert found[:1] + found[2:] == [0, 0, 0]


def test_a_larger_norm_alone_is_seen(states: torch.Tensor) -> None:
    changed = states.clone()
    changed[:, 2] *= 1.1
    assert distances(canary(states), canary(changed))[2] == pytest.approx(0.09, abs=0.005)


def test_tokens_of_huge_norm_neither_hide_nor_overflow(states: torch.Tensor) -> None:
    states = states.clone()
    states[0] *= 1e6
    assert max(distances(canary(states), canary(states))) == 0
    assert distances(canary(states), canary(off_by(states, 0.0, 1)))[1] == 0
    changed = states.clone()
    changed[1:, 3] = off_by(states[1:], 0.1, 3)[:, 3]
    assert distances(canary(states), canary(changed))[3] == pytest.approx(0.1, rel=0.35)


def test_a_canary_survives_the_manifests_json(states: torch.Tensor) -> None:
    found = canary(states)
    stored = Manifest.model_validate_json(
        manifest(boundaries=BOUNDARIES, hidden_size=64, canary=found).model_dump_json()
    )
    assert stored.canary == found
    assert len(found.model_dump_json()) < 6000


WEIGHTS = {f"model.layers.{n}": "a" for n in range(12)} | {"lm_head": "a"}


def compare(change: dict[str, str], one: Canary | None, other: Canary | None) -> list[str]:
    found = model_differences((WEIGHTS, WEIGHTS | change), (one, other), BOUNDARIES, 10)
    return list(found)


def test_the_same_weights_and_states_within_tolerance_are_one_model(states: torch.Tensor) -> None:
    near = off_by(states, 0.5 * tolerance(7), 2)
    assert compare({}, canary(states), canary(near)) == []


def test_other_weights_are_named_by_their_layers(states: torch.Tensor) -> None:
    same = canary(states)
    assert compare({"model.layers.4": "b"}, same, same) == [
        "weights of model.layers.4 (1 of 13 groups)"
    ]
    (many,) = compare({f"model.layers.{n}": "b" for n in range(2, 12)}, same, same)
    assert many == (
        "weights of model.layers.2, model.layers.3, model.layers.4, model.layers.5, ... "
        "(10 of 13 groups)"
    )


def test_the_same_files_and_other_states_are_refused_with_the_first_state_that_differs(
    states: torch.Tensor,
) -> None:
    other = canary(off_by(off_by(states, 0.1, 1), 0.3, 2))
    (what,) = compare({}, canary(states), other)
    assert "the weights' files are the same" in what
    assert what.endswith("at boundary 5")
    assert compare({}, canary(states), canary(off_by(states, 0.1, 3)))[0].endswith("at final")
    unrecorded = model_differences(({}, WEIGHTS), (canary(states), other), BOUNDARIES, 10)
    assert "the weights were not recorded" in next(iter(unrecorded))


def test_what_one_side_did_not_record_is_not_compared(states: torch.Tensor) -> None:
    far = canary(off_by(states, 0.5, 0))
    assert model_differences(({}, WEIGHTS), (None, far), BOUNDARIES, 10) == {}
    assert compare({}, None, far) == []
    assert distances(canary(states), canary(states[:, :2])) == []


def proof(states: torch.Tensor, **plugin: object) -> ServerCheck:
    facts = {"pid": 1, "plugin_version": "1", "sglang_version": "1", "written_at": 0.0}
    info = PluginInfo(**{**facts, "boundaries": BOUNDARIES, "weights": WEIGHTS, **plugin})
    return ServerCheck(info, None, canary(states))  # type: ignore[arg-type]


def test_two_servers_of_one_job_must_have_one_model(states: torch.Tensor) -> None:
    one = proof(states, model_path="/a")
    assert differences(one, proof(states, model_path="/elsewhere")) == {}
    for other, what in (
        (proof(states, weights=WEIGHTS | {"model.layers.3": "b"}), r"weights of model\.layers\.3"),
        (proof(off_by(states, 0.2, 0)), "the canary's states .* at boundary 2"),
        (proof(states, hidden_size=7), "hidden_size"),
    ):
        with pytest.raises(ServerError, match=f"y serves something else than x: {what}.* differ"):
            require_same("x", one, "y", other)
    assert differences(one, replace(one, canary=None)) == {}


@pytest.mark.parametrize("old", ["stored", "wanted"])
def test_a_manifest_of_before_is_compared_by_what_it_has(states: torch.Tensor, old: str) -> None:
    make = functools.partial(manifest, boundaries=BOUNDARIES, hidden_size=64)
    new = make(weights=WEIGHTS, canary=canary(states))
    pair = (make(), new) if old == "stored" else (new, make())
    assert differing_fields(*pair) == {}
    other = make(weights=WEIGHTS | {"lm_head": "b"}, canary=canary(states))
    assert list(differing_fields(new, other)) == ["weights of lm_head (1 of 13 groups)"]
    assert differing_fields(new, make(weights=WEIGHTS, canary=canary(states), model_path="x")) == {}


def test_deeper_states_may_be_further_apart_as_rounding_adds_up(states: torch.Tensor) -> None:
    one = canary(states)
    for share, layers, count in ((0.05, 10, 1), (0.05, 120, 0), (0.12, 120, 1)):
        other = canary(off_by(states, share, 3))
        assert len(model_differences(({}, {}), (one, other), BOUNDARIES, layers)) == count
