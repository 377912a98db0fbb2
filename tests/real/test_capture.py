"""The plugin in a real SGLang server, against transformers, family by family."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from make.dumps import BOUNDARIES
from make.models import FAMILIES, NUM_LAYERS
from make.reference import CHUNK
from make.rows import random_sample
from real.served import EXPECTED, Served, assert_is_reference
from real.servers import end_server

from hslib.dataset import Sample
from hslib.errors import DumpError
from hslib.server import launch as server
from hslib.server.dumps import DumpDir, request_id
from hslib.server.validate import validate

_QUICK = ("llama",)  # the demo's architecture is in the demo's own tests


@pytest.fixture(
    scope="module",
    params=[f if f in _QUICK else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES],
)
def served(
    request: pytest.FixtureRequest,
    model_of: Callable[[str], Path],
    start_server: Callable[..., server.ServerState],
) -> Iterator[Served]:
    model = model_of(request.param)
    if request.param == "llama":
        state = request.getfixturevalue("llama_server")
    else:
        state = start_server(model, chunked_prefill_size=CHUNK)
    with server.client_of(state) as client:
        yield Served(model, client, DumpDir(state.dump_dir))
    if request.param != "llama":
        end_server(state)


def test_boundaries_read_back_from_the_model_are_those_asked_for(served: Served) -> None:
    plugin = served.dumps.plugin()
    assert plugin is not None
    assert plugin.boundaries == BOUNDARIES
    assert (plugin.num_layers, plugin.hidden_size) == (NUM_LAYERS, 64)


def test_states_of_a_row_alone_are_the_reference(served: Served) -> None:
    sample = random_sample(0, 50)
    (dump,) = served.dump([sample])
    assert dump.meta.chunks == ((0, 50),)
    assert_is_reference(served.model, sample, dump)


def test_states_in_a_batch_of_equal_and_other_lengths_are_the_reference(served: Served) -> None:
    samples = [random_sample(10 + i, n) for i, n in enumerate((17, 9, 17, 1, 30, 17, 9))]
    for sample, dump in zip(samples, served.dump(samples), strict=True):
        assert_is_reference(served.model, sample, dump)


def test_states_of_a_chunked_prefill_are_the_reference(served: Served) -> None:
    sample = random_sample(20, 200)
    (dump,) = served.dump([sample])
    assert dump.meta.chunks == ((0, 64), (64, 64), (128, 64), (192, 8))
    assert_is_reference(served.model, sample, dump)


def test_a_row_gives_the_same_states_alone_and_among_others(served: Served) -> None:
    sample = random_sample(30, 40)
    (alone,) = served.dump([sample])
    others = [random_sample(31 + i, n) for i, n in enumerate((12, 40, 5))]
    *_, among = served.dump([*others, sample], attempt=2)
    first, second = (
        torch.from_numpy(d.hidden_states.copy()).view(torch.bfloat16).float()
        for d in (alone, among)
    )
    assert float((first - second).norm() / first.norm()) < 0.03


def test_a_neighbours_states_are_refused(served: Served) -> None:
    """Negative control: same length, other row."""
    mine, other = random_sample(40, 25), random_sample(41, 25)
    dump, _ = served.dump([mine, other])
    with pytest.raises(DumpError, match="input_ids at 0"):
        validate(dump, other, EXPECTED)


def test_decoding_after_the_prefill_adds_no_rows(served: Served) -> None:
    sample = random_sample(50, 12)
    body = {
        "input_ids": sample.input_ids.tolist(),
        "rid": request_id(sample, 1),
        "sampling_params": {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True},
    }
    answer = served.client._http.post("/generate", json=body)
    assert answer.json()["meta_info"]["completion_tokens"] == 5
    served.dumps.wait(request_id(sample, 1), 10)
    dump = served.dumps.load(request_id(sample, 1))
    assert dump.meta.chunks == ((0, 12),)
    validate(dump, sample, EXPECTED)


def test_server_numbers_are_those_of_the_states(served: Served) -> None:
    sample = random_sample(60, 33)
    (dump,) = served.dump([sample])
    states = torch.from_numpy(dump.hidden_states.copy()).view(torch.bfloat16).double()
    for number, layer in enumerate(dump.meta.layers):
        state = states[:, number]
        assert layer.finite
        assert layer.absmax == state.abs().max()
        assert layer.mean_l2 == pytest.approx(float(state.norm(dim=-1).mean()), rel=1e-5)
        assert layer.zero_share == pytest.approx(float((state == 0).double().mean()))


def test_an_id_that_claims_another_length_is_an_error_of_that_request(served: Served) -> None:
    sample = random_sample(70, 9)
    rid = request_id(Sample(70, "x", np.arange(10, dtype=np.int32), sample.loss_mask), 1)
    served.client.prefill([sample.input_ids], [rid])
    with pytest.raises(DumpError, match="the id says 10 tokens, the request has 9"):
        served.dumps.wait(rid, 10)
