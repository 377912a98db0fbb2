"""The plugin in a real SGLang server, against transformers, family by family."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from make import models as tiny_models
from make.dumps import BOUNDARIES
from make.reference import CHUNK, reference_states, relative_errors
from make.rows import random_sample

from hslib.dataset import Sample
from hslib.errors import DumpError
from hslib.server import launch as server
from hslib.server import processes
from hslib.server.client import ServerClient
from hslib.server.dumps import Dump, DumpDir, request_id
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate

EXPECTED = Expected(BOUNDARIES, hidden_size=64)


class Served(NamedTuple):
    model: Path
    client: ServerClient
    dumps: DumpDir

    def dump(self, samples: list[Sample], attempt: int = 1) -> list[Dump]:
        """Send samples in one request and load their validated dumps."""
        rids = [request_id(sample, attempt) for sample in samples]
        self.client.prefill([sample.input_ids for sample in samples], rids)
        for rid, sample in zip(rids, samples, strict=True):
            self.dumps.wait(rid, 10)
            validate(self.dumps.load(rid), sample, EXPECTED)
        return [self.dumps.load(rid) for rid in rids]


@pytest.fixture(scope="module")
def servers(
    llama_server: server.ServerState,
    model_of: Callable[[str], Path],
    start_server: Callable[..., server.ServerState],
) -> Iterator[dict[str, server.ServerState]]:
    """All families, started side by side: most of a start runs on one core."""
    others = [family for family in tiny_models.FAMILIES if family != "llama"]
    models = [model_of(family) for family in others]
    with ThreadPoolExecutor() as pool:
        states = pool.map(lambda m: start_server(m, chunked_prefill_size=CHUNK), models)
        started = dict(zip(others, states, strict=True))
    yield {"llama": llama_server, **started}
    for state in started.values():
        processes.stop_group(state)


@pytest.fixture(scope="module", params=tiny_models.FAMILIES)
def served(
    request: pytest.FixtureRequest,
    servers: dict[str, server.ServerState],
    model_of: Callable[[str], Path],
) -> Iterator[Served]:
    state = servers[request.param]
    with server.client_of(state) as client:
        yield Served(model_of(request.param), client, DumpDir(state.dump_dir))


def assert_is_reference(model: Path, sample: Sample, dump: Dump) -> None:
    """Each captured state is nearest, by far, to the reference state it claims to be."""
    references = reference_states(model, sample.input_ids)
    states = torch.from_numpy(dump.hidden_states.copy()).view(torch.bfloat16)
    for number, boundary in enumerate((*BOUNDARIES, tiny_models.NUM_LAYERS)):
        errors = relative_errors(states[:, number], references)
        own = errors.pop(boundary)
        assert own < 0.03, f"boundary {boundary}: {own:.4f}"
        assert min(errors) > 5 * own, f"boundary {boundary}: {own:.4f}, another {min(errors):.4f}"


def test_boundaries_read_back_from_the_model_are_those_asked_for(served: Served) -> None:
    plugin = served.dumps.plugin()
    assert plugin is not None
    assert plugin.boundaries == BOUNDARIES
    assert (plugin.num_layers, plugin.hidden_size) == (tiny_models.NUM_LAYERS, 64)


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
