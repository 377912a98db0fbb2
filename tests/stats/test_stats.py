"""Every statistic against plain float64 NumPy on states that transformers computed."""

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from make.stores import DEMO_BOUNDARIES, Row, demo_rows, made_up_rows, write_store

from hslib.errors import StoreError
from hslib.stats import measure
from hslib.stats.coherence import Coherence, Sketcher
from hslib.stats.measure import StoreStats, in_order
from hslib.stats.moments import moments
from hslib.stats.sample import MASSIVE_RATIO
from hslib.stats.sampling import draw
from hslib.stats.totals import position_edges, spectrum
from hslib.store import Entry, Store

STATES = ("boundary 2", "boundary 5", "boundary 7", "final")


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return demo_rows(32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, rows: tuple[Row, ...]) -> Store:
    return write_store(tmp_path_factory.mktemp("stats") / "store", rows, DEMO_BOUNDARIES)


@pytest.fixture(scope="module")
def stats(store: Store) -> StoreStats:
    return measure(store, seed=7)


@pytest.fixture(scope="module")
def values(rows: tuple[Row, ...]) -> np.ndarray:
    """All tokens, float64 [T, L, H]."""
    return np.concatenate([states.double().numpy() for _, states in rows])


@pytest.fixture(scope="module")
def norms(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((values**2).sum(axis=2)))


# --- layers -------------------------------------------------------------------------------


def test_mean_spread_and_kurtosis_are_numpys(stats: StoreStats, values: np.ndarray) -> None:
    flat = values.transpose(1, 0, 2).reshape(len(STATES), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1)
    np.testing.assert_allclose(stats.layers["mean"], flat.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(stats.layers["std"], np.sqrt(variance), rtol=1e-6)
    kurtosis = (centred**4).mean(axis=1) / variance**2
    np.testing.assert_allclose(stats.layers["kurtosis"], kurtosis, rtol=1e-5)


def test_norms_absmax_and_zeros_are_numpys(
    stats: StoreStats, values: np.ndarray, norms: np.ndarray
) -> None:
    np.testing.assert_allclose(stats.layers["mean_l2"], norms.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats.layers["std_l2"], norms.std(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(stats.layers["absmax"], np.abs(values).max(axis=(0, 2)))
    np.testing.assert_allclose(stats.layers["zero_share"], (values == 0).mean(axis=(0, 2)))
    assert stats.layers["non_finite"].tolist() == [0, 0, 0, 0]


def test_what_the_server_measured_is_taken_from_the_journal(
    store: Store, stats: StoreStats
) -> None:
    told = [layer["absmax"] for entry in store.entries.values() for layer in entry.layers]
    assert stats.samples["absmax"].tolist() == told


def test_quantiles_of_norms_are_numpys_within_a_percent(
    stats: StoreStats, norms: np.ndarray
) -> None:
    wanted = np.quantile(norms, [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99], axis=0).T
    np.testing.assert_allclose(stats.norms.iloc[:, 1:].to_numpy(), wanted, rtol=0.01)


def test_norms_by_position_are_numpys_and_the_first_tokens_stand_apart(
    stats: StoreStats, rows: tuple[Row, ...]
) -> None:
    norms = [states.double().norm(dim=2).numpy() for _, states in rows]
    table = stats.positions
    assert table[table["state"] == "final"]["first"].tolist()[:10] == [*range(9), 12]
    for line in table.itertuples():
        state = STATES.index(line.state)
        inside = np.concatenate([one[line.first : line.last + 1, state] for one in norms])
        assert line.tokens == len(inside)
        np.testing.assert_allclose(line.mean_l2, inside.mean(), rtol=1e-6)
        np.testing.assert_allclose(line.std_l2, inside.std(), rtol=1e-4, atol=1e-5)
    assert table.groupby("state")["tokens"].sum().tolist() == [sum(map(len, norms))] * 4


def test_similarity_of_states_and_of_neighbours_is_numpys(
    stats: StoreStats, rows: tuple[Row, ...], values: np.ndarray, norms: np.ndarray
) -> None:
    unit = values / norms[:, :, None]
    wanted = np.einsum("tih,tjh->ij", unit, unit) / len(unit)
    np.testing.assert_allclose(stats.similarity.to_numpy(), wanted, rtol=1e-5)
    following = stats.layers["cosine_to_next_state"].to_numpy()
    np.testing.assert_allclose(following[:-1], np.diagonal(wanted, 1), rtol=1e-5)
    assert np.isnan(following[-1])
    products = []
    for _, states in rows:
        one = states.double().numpy()
        one = one / np.linalg.norm(one, axis=2, keepdims=True)
        products.append((one[1:] * one[:-1]).sum(axis=2))
    found = stats.layers["cosine_to_next_token"]
    np.testing.assert_allclose(found, np.concatenate(products).mean(axis=0), atol=1e-6)


def test_the_spectrum_is_that_of_the_drawn_tokens_by_plain_svd(
    store: Store, stats: StoreStats
) -> None:
    for at, state in enumerate(STATES):
        drawn = np.concatenate(
            [
                store[index].hidden_states[torch.from_numpy(positions)][:, at].double().numpy()
                for index, positions in stats.sampling.tokens.items()
            ]
        )
        singular = np.linalg.svd(drawn - drawn.mean(axis=0), compute_uv=False)
        lines = stats.spectra[stats.spectra["state"] == state]
        np.testing.assert_allclose(lines["share"], singular**2 / (singular**2).sum(), atol=1e-7)
        weights = singular / singular.sum()
        rank = np.exp(-(weights * np.log(weights)).sum())
        np.testing.assert_allclose(stats.layers.loc[state, "effective_rank"], rank, rtol=1e-5)
        wanted = int(np.argmax(np.cumsum(singular**2) >= 0.9 * (singular**2).sum())) + 1
        assert stats.layers.loc[state, "components_for_90"] == wanted


def test_lengths_and_masks_are_those_of_the_rows(stats: StoreStats, rows: tuple[Row, ...]) -> None:
    assert stats.masks["num_tokens"].tolist() == [sample.num_tokens for sample, _ in rows]
    assert stats.masks["mask_tokens"].tolist() == [int(s.loss_mask.sum()) for s, _ in rows]
    np.testing.assert_allclose(
        stats.masks["coverage"], [sample.loss_mask.mean() for sample, _ in rows]
    )


def test_a_sound_store_of_a_real_model_has_no_anomaly(stats: StoreStats) -> None:
    assert stats.anomalies.empty, stats.anomalies.to_string()
    assert stats.sentence() == "No anomaly: no sample stands apart from the others."


# --- edges --------------------------------------------------------------------------------


def test_massive_values_are_found_with_dimension_position_and_sample(tmp_path: Path) -> None:
    rows = made_up_rows(12)
    for index in (3, 8):
        rows[index][1][0, 1, 17] = 3000.0
    rows[8][1][20, 1, 17] = -3000.0
    rows[5][1][9, 2, 40] = 0.5 * MASSIVE_RATIO  # large, but not that large
    found = measure(write_store(tmp_path / "store", rows)).massive
    assert len(found) == 1
    line = found.iloc[0]
    assert (line["state"], line["dimension"], line["count"]) == ("boundary 3", 17, 3)
    assert (line["samples"], line["seen_in"]) == (2, "3, 8")
    assert abs(line["largest"]) == 3008.0, "3000 in bf16"
    assert line["share_at_first_token"] == pytest.approx(2 / 3)
    median = np.median(np.abs(rows[3][1][:, 1].float().numpy()))
    assert line["times_median"] == pytest.approx(3008 / median, rel=0.25)


def test_large_values_and_what_is_not_finite_do_not_spoil_the_sums(tmp_path: Path) -> None:
    rows = made_up_rows(10)
    rows[2][1][5, 1, 3] = float("nan")
    rows[2][1][6, 1, 3] = float("inf")
    rows[4][1][7, 2, 3] = 1e30  # its fourth power is beyond float64's float32 sums
    stats = measure(write_store(tmp_path / "store", rows))
    assert stats.layers["non_finite"].tolist() == [0, 2, 0, 0]
    values = np.concatenate([states.double().numpy() for _, states in rows])
    finite = values[:, 1][np.isfinite(values[:, 1])]
    np.testing.assert_allclose(stats.layers["mean"].iloc[1], finite.mean(), atol=1e-6)
    np.testing.assert_allclose(stats.layers["std"].iloc[1], finite.std(), rtol=1e-6)
    np.testing.assert_allclose(stats.layers["std"].iloc[2], values[:, 2].std(), rtol=1e-6)
    sound = np.concatenate([s[:, 1].double().numpy() for i, (_, s) in enumerate(rows) if i != 2])
    told = np.linalg.norm(sound, axis=1).mean()
    assert stats.layers["mean_l2"].iloc[1] == pytest.approx(told), "of samples that have one"


def test_a_sample_longer_than_a_block_is_measured_across_the_seam(tmp_path: Path) -> None:
    (sample, _), *_ = made_up_rows(1)
    length = 16 * 4 * 7168 // (4 * 16) + 300
    ids = np.resize(sample.input_ids, length)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(length, 4, 16, generator=generator).to(torch.bfloat16)
    long = dataclasses.replace(sample, input_ids=ids, loss_mask=np.ones(length, np.uint8))
    stats = measure(write_store(tmp_path / "store", [(long, states)]))
    values = states.double().numpy()
    unit = values / np.linalg.norm(values, axis=2, keepdims=True)
    wanted = (unit[1:] * unit[:-1]).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(stats.layers["cosine_to_next_token"], wanted, atol=1e-7)
    np.testing.assert_allclose(stats.layers["std"], values.std(axis=(0, 2)), rtol=1e-6)


def test_a_row_of_one_token_has_no_neighbours_and_breaks_nothing(tmp_path: Path) -> None:
    rows = made_up_rows(9)
    sample, states = rows[0]
    rows[0] = (
        dataclasses.replace(sample, input_ids=sample.input_ids[:1], loss_mask=sample.loss_mask[:1]),
        states[:1],
    )
    stats = measure(write_store(tmp_path / "store", rows))
    first = stats.samples[stats.samples["index"] == 0]
    assert first["adjacent_cosine"].isna().all()
    assert stats.layers["cosine_to_next_token"].notna().all()


def test_an_empty_store_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(1))
    store.entries.clear()
    with pytest.raises(StoreError, match="run notebook 03"):
        measure(store)


# --- sampling -----------------------------------------------------------------------------


def test_a_sample_of_a_store_says_so_and_is_the_same_for_a_seed(store: Store) -> None:
    first, again = measure(store, 10, seed=3), measure(store, 10, seed=3)
    assert first.sampling.indices == again.sampling.indices
    assert len(first.samples) == 10 * len(STATES)
    assert first.layers.equals(again.layers)
    assert "10 of 32 stored samples" in first.sampling.sentence()
    assert "seed 3" in first.sampling.sentence()
    assert measure(store, 10, seed=4).sampling.indices != first.sampling.indices
    assert "All 32 stored samples" in measure(store).sampling.sentence()


def test_tokens_are_drawn_uniformly_over_tokens_and_not_over_samples() -> None:
    entries = {
        index: Entry(index=index, id=str(index), status="ok", num_tokens=tokens)
        for index, tokens in enumerate([10, 1000, 0, 90])
    }
    counts = np.zeros(4)
    for seed in range(200):
        drawn = draw(entries, 0, seed, max_tokens=50)
        assert drawn.drawn_tokens == 50
        for index, positions in drawn.tokens.items():
            counts[index] += len(positions)
            assert len(set(positions)) == len(positions)
            assert 0 <= positions.min() <= positions.max() < entries[index].num_tokens
    np.testing.assert_allclose(
        counts / counts.sum(), [10 / 1100, 1000 / 1100, 0, 90 / 1100], atol=0.01
    )


# --- parts --------------------------------------------------------------------------------


def test_moments_of_added_sums_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.gamma(2.0, 1.0, (1, n)) for n in (5, 1000, 37)]
    found = moments(sum(np.stack([(part**k).sum(axis=1) for k in range(5)]) for part in parts))
    whole = np.concatenate(parts, axis=1)
    centred = whole - whole.mean()
    np.testing.assert_allclose(found.mean, whole.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.std, whole.std(), rtol=1e-9)
    np.testing.assert_allclose(found.kurtosis, (centred**4).mean() / whole.var() ** 2, rtol=1e-9)
    assert np.isnan(moments(np.zeros((5, 1))).kurtosis)


def test_effective_rank_counts_equal_directions_and_a_constant_has_one() -> None:
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 5)))[0].T
    rows = np.concatenate([basis, -basis]).astype(np.float32) * 3
    assert spectrum(rows).effective_rank == pytest.approx(5, rel=1e-3)
    assert spectrum(rows).components_for(0.9) == 5
    assert spectrum(np.ones((10, 8), np.float32)).effective_rank == 1.0
    tall = np.random.default_rng(1).standard_normal((40, 6)).astype(np.float32)
    values = np.linalg.eigvalsh(np.cov(tall.T.astype(np.float64)))[::-1]
    np.testing.assert_allclose(spectrum(tall).share, values / values.sum(), rtol=1e-6)


def test_positions_are_binned_without_gap_or_overlap() -> None:
    assert position_edges(5).tolist() == [0, 1, 2, 3, 4, 5]
    assert position_edges(1).tolist() == [0, 1]
    assert position_edges(40).tolist() == [*range(9), 12, 16, 24, 32, 40]


def test_states_under_their_own_ids_score_high_and_under_others_low() -> None:
    sketcher = Sketcher(96, 0)
    sketches = [sketcher.sketch(s.input_ids, states[:, 0]) for s, states in demo_rows(32)]
    found = Coherence(sketches)
    assert np.nanmin(found.scores()) > 0.8
    long = [at for at, (sample, _) in enumerate(demo_rows(32)) if sample.num_tokens > 36]
    crossed = [found.score(a, b) for a, b in itertools.pairwise(long)]
    assert max(crossed) < 0.6


def test_ids_that_occur_nowhere_else_are_not_judged() -> None:
    sketcher = Sketcher(8, 0)
    states = torch.randn(10, 8).to(torch.bfloat16)
    sketches = [sketcher.sketch(np.arange(10) + 100 * n, states) for n in range(3)]
    assert np.isnan(Coherence(sketches).scores()).all()


def test_results_come_in_order_and_few_wait() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    results = in_order(lambda item: -item, items(), workers=2)
    assert [next(results) for _ in range(3)] == [0, -1, -2]
    assert len(taken) < 12
    assert list(results) == [-item for item in range(3, 100)]


MEASURE_MEMORY = """
import dataclasses, resource, sys
from pathlib import Path
from hslib.stats import measure
from hslib.store import Store

store = Store(sys.argv[1])
few, many = list(store.entries.values()), int(sys.argv[2])
entries = {i: dataclasses.replace(few[i % len(few)], index=i) for i in range(many)}
store.entries.clear()
store.entries.update(entries)
measure(store)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """20,000 samples, 350 MB in all, against 200 of them, each in its own process."""
    rows = made_up_rows(40)
    write_store(tmp_path / "store", rows)

    def peak_mb(count: int) -> float:
        command = [sys.executable, "-c", MEASURE_MEMORY, tmp_path / "store", str(count)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(run.stdout) / 1e3

    few, many = peak_mb(200), peak_mb(20_000)
    assert many - few < 100, f"{few:.0f} MB for 200 samples, {many:.0f} MB for 20,000"


def test_few_massive_tokens_do_not_spoil_the_spectrum_of_wide_states() -> None:
    """float32 products of tokens, as for the case study's width, against float64 SVD."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((60, 30)) @ rng.standard_normal((30, 900))).astype(np.float32)
    rows += 0.01 * rng.standard_normal(rows.shape).astype(np.float32)
    rows[:2, 17] = 3000.0
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    singular = np.linalg.svd(centred, compute_uv=False)[:59]
    found = spectrum(rows)
    weights = singular / singular.sum()
    rank = np.exp(-(weights * np.log(weights)).sum())
    assert found.effective_rank == pytest.approx(rank, rel=0.01)
    np.testing.assert_allclose(found.share, singular**2 / (singular**2).sum(), atol=1e-6)
