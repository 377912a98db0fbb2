"""Jobs whose stores are encoded: the parameter, what is told before and after, the limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.server import SAMPLES, FakeServer, states_of
from make.jobs import prepare, run, wanted

from hslib.errors import ParameterError
from hslib.parameters import ExtractionParameters
from hslib.store import CODECS, Store
from hslib.terminal import main


@pytest.fixture
def parameters(fake: FakeServer, tmp_path: Path) -> Callable[..., ExtractionParameters]:
    def make(**values: Any) -> ExtractionParameters:
        return wanted(fake, tmp_path, SAMPLES, **values)

    return make


@pytest.mark.parametrize("encoding", CODECS)
def test_a_job_stores_what_was_dumped(
    parameters: Callable[..., ExtractionParameters], encoding: str
) -> None:
    job = prepare(parameters(encoding=encoding))
    assert job.facts()["encoding"].startswith(f"{encoding}: ")
    assert job.facts()["store grows by"].startswith("about") == (encoding == "lossless")
    assert run(parameters(encoding=encoding)).is_whole
    store = Store(parameters().store_path)
    assert store.manifest.encoding == encoding
    assert {entry.encoding for entry in store.entries.values()} == {encoding}
    assert store.verify(deep=True).clean
    for sample in SAMPLES:
        found, dumped = store[sample.index].hidden_states, states_of(sample.input_ids)
        if CODECS[encoding].is_lossy:
            assert (found.float() - dumped.float()).norm() < 0.05 * dumped.float().norm()
        else:
            assert found.equal(dumped)


def test_the_forecast_of_fp8_is_exact(parameters: Callable[..., ExtractionParameters]) -> None:
    plan = prepare(parameters(encoding="fp8")).plan
    run(parameters(encoding="fp8"))
    entries = Store(parameters().store_path).entries.values()
    headers = 600 * len(entries)  # at most
    assert 0 <= plan.todo_bytes - sum(entry.size_bytes for entry in entries) <= headers


def test_a_job_goes_on_in_another_encoding_and_the_store_says_both(
    parameters: Callable[..., ExtractionParameters],
) -> None:
    run(parameters(limit=2))
    assert run(parameters(encoding="lossless")).is_whole
    store = Store(parameters().store_path)
    told = store.encoding_sentence()
    assert "2 samples plain: " in told
    assert f"{len(SAMPLES) - 2} samples lossless: " in told
    assert store.manifest.encoding == "plain"
    assert store.verify(deep=True).clean


def test_samples_that_would_lose_too_much_fail_with_the_state_and_the_cure(
    parameters: Callable[..., ExtractionParameters],
) -> None:
    result = run(parameters(encoding="fp8", max_encoding_error=0.001))
    assert len(result.failed) == len(SAMPLES)
    assert all("loses more than max_encoding_error" in why for why in result.failed.values())
    assert all("store it as lossless" in why for why in result.failed.values())
    entries = Store(parameters().store_path).journal_state.failed.values()
    assert {entry.attempts for entry in entries} == {1}, "another try would lose as much"


def test_fp8_aux_wants_a_final_state(parameters: Callable[..., ExtractionParameters]) -> None:
    with pytest.raises(ParameterError, match='use "fp8", or store_final = True'):
        parameters(encoding="fp8-aux", store_final=False)
    with pytest.raises(ParameterError, match="encoding"):
        parameters(encoding="zstd")


def test_verify_reads_encoded_samples_in_a_terminal(
    parameters: Callable[..., ExtractionParameters], capsys: pytest.CaptureFixture[str]
) -> None:
    run(parameters(encoding="lossless"))
    store = Store(parameters().store_path)
    assert main(["verify", str(store.path)]) == 0
    path = Path(store.path) / store.entries[SAMPLES[1].index].file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert main(["verify", str(store.path), "--repair"]) == 1
    assert "took back 1 samples" in capsys.readouterr().out
    assert run(parameters(encoding="lossless")).is_whole
    assert main(["verify", str(store.path)]) == 0
