"""What a job takes, against the case study, the benchmarks and a real store."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from make.rows import demo_samples, random_sample, write_rows

from hslib import demo, terminal
from hslib.errors import ParameterError
from hslib.job.forecast import Forecast
from hslib.job.scheduler import requests_at_once
from hslib.parameters import ExtractionParameters
from hslib.server.dumps import dump_bytes
from hslib.store import Store, size_words, state_bytes, stored_bytes

# The case study: Kimi-K2.5, three aux layers of 61, its rows, and the rates that it reports.
ROWS, AUX, HIDDEN = 37_312, 3, 7168
SLOW, FAST = 1_281, 2_689  # tok/s
CASE = ["--hidden-size", "7168", "--num-layers", "61", "--layers", "3,31,59"]
JOB = ExtractionParameters(concurrency=16, samples_per_request=8, tokens_per_request=2048)


def sized(
    tokens: int = 61_000_000, rows: int = ROWS, rate: float = SLOW, **values: Any
) -> Forecast:
    found = Forecast(AUX + 1, HIDDEN, tokens, rate, JOB, rows=rows, longest=8192)
    return dataclasses.replace(found, **values)


def test_the_case_studys_bytes_a_token() -> None:
    assert state_bytes(AUX + 1, HIDDEN) == 57_344


@pytest.mark.parametrize(
    ("size", "tokens_a_row"), [(133e9, 62), (3.5e12, 1636), (4e12, 1869), (560e9, 262)]
)
def test_the_case_studys_sizes_say_how_long_its_rows_would_be(
    size: float, tokens_a_row: int
) -> None:
    """The case study reports 133 GB and 3.5 to 4 TB for one job: they can't both be."""
    assert round(size / 57_344 / ROWS) == tokens_a_row
    tokens = round(size / 57_344)
    more = stored_bytes(tokens, ROWS, 57_344) / size - 1
    assert 0 < more < 0.0015, "ids, masks and headers are next to nothing"


def test_the_case_studys_extrapolation_is_that_of_its_84_or_of_its_20_samples() -> None:
    assert size_words(0.3e9 / 84 * ROWS) == "133 GB"
    assert size_words(0.3e9 / 20 * ROWS) == "560 GB"


@pytest.mark.parametrize(
    ("rate", "minutes", "tokens", "size"),
    [(SLOW, 782, 60_104_520, "3.45 TB"), (FAST, 471, 75_991_140, "4.36 TB")],
)
def test_the_case_studys_rates_and_minutes_make_two_numbers_of_tokens(
    rate: int, minutes: int, tokens: int, size: str
) -> None:
    assert rate * minutes * 60 == tokens
    found = sized(tokens, rate=rate)
    assert found.hours * 60 == pytest.approx(minutes)
    assert size_words(found.store_bytes) == size


def test_the_case_studys_minutes_are_its_samples_a_second() -> None:
    assert round(ROWS / 1.32 / 60) == 471
    assert round(ROWS / 0.79 / 60) == 787, "not 782, which it reports"


@pytest.mark.parametrize(("samples", "size"), [(224, "6.58 GB"), (96, "2.82 GB")])
def test_the_benchmarks_stores_have_the_size_that_is_foretold(samples: int, size: str) -> None:
    """tests/bench/store_reading.py: samples of 512 tokens, said to be 6.6 and 2.8 GB."""
    assert size_words(stored_bytes(samples * 512, samples, 57_344)) == size


def test_the_demos_store_has_the_size_that_is_foretold(demo_store: Store) -> None:
    entries = demo_store.entries.values()
    tokens = sum(entry.num_tokens for entry in entries)
    per_token = demo_store.manifest.state_bytes_per_token
    real = sum(path.stat().st_size for path in demo_store.path.rglob("*.safetensors"))
    for entry in entries:
        foretold = stored_bytes(entry.num_tokens, 1, per_token)
        assert 0 <= foretold - entry.size_bytes < 600, "its header, rounded up"
    assert abs(stored_bytes(tokens, len(demo_store), per_token) - real) < 600 * len(demo_store)


@pytest.fixture
def demo_store(tmp_path: Path) -> Store:
    """The demo's first rows and one over a megabyte, by the real writer."""
    from make.stores import model_store

    samples = [*demo_samples(6), *[random_sample(6, 1400)]]
    return model_store(tmp_path / "store", demo.model_path(), samples, (2, 5, 7))


@pytest.mark.parametrize(("encoding", "share"), [("fp8", 0.5), ("lossless", 0.68)])
def test_an_encoded_store_is_foretold_smaller_and_the_dumps_are_not(
    encoding: str, share: float
) -> None:
    plain, encoded = (
        sized(61_000_000, job=ExtractionParameters.from_values({"encoding": name}))
        for name in ("plain", encoding)
    )
    assert encoded.store_bytes / plain.store_bytes == pytest.approx(share, abs=0.002)
    assert encoded.tmpfs_bytes == plain.tmpfs_bytes
    assert any(f"in {encoding}" in formula for _, _, formula in encoded.facts())


def test_a_dump_is_counted_as_the_server_counts_it() -> None:
    from hs_dump import dump_file

    for tokens in (1, 4710):
        assert dump_bytes(tokens, 1, 57_344) == dump_file.state_bytes(tokens, 4, HIDDEN)


@pytest.mark.parametrize(
    ("values", "bottleneck", "hours"),
    [
        ({}, "servers", 13.228),
        ({"replicas": 4}, "servers", 13.228 / 4),
        ({"replicas": 4, "store_rate": 1e9}, "servers", 13.228 / 4),
        ({"replicas": 14, "store_rate": 1e9}, "store", 3.4987e12 / 1e9 / 3600),
        ({"replicas": 4, "link_rate": 0.05e9}, "network", 3.4987e12 / 0.05e9 / 4 / 3600),
        ({"replicas": 4, "link_rate": 0.05e9, "store_rate": 1e9}, "network", 4.8593),
        ({"replicas": 1, "store_rate": 0.01e9}, "store", 3.4987e12 / 0.01e9 / 3600),
    ],
)
def test_the_slowest_of_servers_links_and_store_sets_the_time(
    values: dict[str, float], bottleneck: str, hours: float
) -> None:
    found = sized(**values)
    assert found.bottleneck == bottleneck
    assert found.hours == pytest.approx(hours, rel=1e-3)


def test_a_store_that_takes_exactly_what_is_sent_is_no_bottleneck() -> None:
    found = sized(replicas=3)
    found = dataclasses.replace(found, store_rate=3 * found.replica_bytes_per_s)
    assert found.bottleneck == "servers"
    assert dataclasses.replace(found, store_rate=found.store_rate * 0.999).bottleneck == "store"


def test_rounding_makes_no_bottleneck_of_the_store() -> None:
    for hundredths in range(40, 60):  # 1.41 / 0.47 is not quite 3
        rates = {"link_rate": hundredths * 1e7, "store_rate": hundredths * 3e7}
        assert sized(rate=1e9, replicas=3, **rates).bottleneck == "network"


def test_room_for_everything_that_may_lie_undelivered() -> None:
    """Workers that hold a request's dumps, as extract starts them, over the share that is used."""
    found = sized()
    assert requests_at_once(16) == 24
    assert requests_at_once(2) == 4, "no more are stored than are in flight"
    one = dump_bytes(8192, 8, 57_344)
    assert found.tmpfs_bytes * 0.8 == pytest.approx(24 * one)
    assert sized(longest=100).request_tokens == 800, "eight share a request"
    assert sized(longest=1500).request_tokens == 2048


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"rate": float("inf")}, "rate is inf"),
        ({"replicas": 0}, "replicas is 0"),
        ({"store_rate": -1e9}, "store_gbps"),
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": 100}, "do not make 100 tokens"),
        ({"rows": -1}, "negative"),
    ],
)
def test_numbers_that_no_job_has_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        sized(**values)


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert terminal.main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_terminal_shows_the_case_studys_job(capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--tokens", "61e6", "--samples", ROWS, "--longest", 8192]
    shown = plan(capsys, *CASE, *work, "--rate", SLOW, "--replicas", 8, "--store-gbps", 0.5)
    facts = dict(re.findall(r"^ *(.+?): (.+?) +=", shown, re.M))
    assert facts == {
        "states of a token": "57,344 B",
        "store grows by": "3.50 TB",
        "one replica writes": "0.0735 GB/s",
        "8 replicas would write": "0.588 GB/s",
        "time of 8 replicas": "1.94 h (117 min)",
        "tmpfs of a replica": "14.1 GB",
        "tmpfs at the least": "470 MB",
    }
    assert "The store is the bottleneck: 8 replicas would write 0.588 GB/s" in shown
    assert "it takes 0.5 GB/s; the servers work 85% of the time." in shown


def test_the_terminal_says_what_a_link_carries(capsys: pytest.CaptureFixture[str]) -> None:
    work = ["--tokens", "61e6", "--rate", FAST]
    shown = plan(capsys, *CASE, *work, "--network-gbps", 0.1, "--store-gbps", 0.05)
    assert "The store is the bottleneck: 1 replica would write 0.1 GB/s" in shown
    shown = plan(capsys, *CASE, *work, "--network-gbps", 0.1)
    assert "it carries 1,744 of the 2,689 tokens/s that a replica makes." in shown


def test_a_dataset_is_counted_and_the_models_shape_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = demo.model_path() / "config.json"
    shown = plan(capsys, "--model", config, "--dataset", demo.dataset_path(), "--rate", 1000)
    assert "76,228 tokens x (768 + 9 B) + 256 files" in shown
    assert "1,490 tokens" in shown, "the longest row"


def test_rows_that_no_job_would_send_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [random_sample(0, 50)])
    with path.open("a") as file:
        file.write(json.dumps({"id": "none"}) + "\n")
    shown = plan(capsys, *CASE, "--dataset", path, "--rate", 10)
    assert "1 rows left out: 1 no_ids; the first: row 1 (rows.jsonl, line 2)" in shown
    assert "50 tokens x" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "100"], "shape is not known"),
        ([*CASE, "--tokens", "100", "--model", "somewhere"], "said twice"),
        ([*CASE, "--tokens", "100", "--longest", "200"], "do not make 100 tokens"),
        ([*CASE[:4], "--layers", "3,62", "--tokens", "100"], "outside 1..61"),
        (["--model", "nowhere", "--tokens", "100"], "nowhere is missing"),
        ([*CASE, "--dataset", "nowhere.jsonl"], "there is no dataset at /"),
        ([*CASE, "--tokens", "100", "--concurrency", "0"], "--concurrency is 0"),
    ],
)
def test_what_can_not_be_planned_says_why(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert terminal.main(["plan", *arguments, "--rate", "10"]) == 1
    assert message in capsys.readouterr().err


def test_without_a_concurrency_it_is_that_of_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*CASE, "--tokens", "1e6", "--longest", "4096", "--rate", "10"]
    in_flight = ExtractionParameters().concurrency
    words = f"({in_flight} requests in flight + 8 answered and being stored) x 4,096 tokens"
    assert words in plan(capsys, *asked)
    few = "(1 requests in flight + 1 answered"
    assert few in plan(capsys, *asked, "--concurrency", 1)
