"""What an encoding costs in acceptance: the same drafter trained on each, with several seeds."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hslib.drafter.eagle3 import POSITIONS, train_drafter
from hslib.drafter.experiment import export_into, model_folder
from hslib.drawing import BLUE, ORANGE, house_style, new_figure
from hslib.export.export import read_rows
from hslib.parameters import ExportParameters
from hslib.store import Encoding, Store, recode_store

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_DEMO_SEEDS = 3
_MOST_PROCESSES = 4  # each holds torch and a drafter
_LIMIT = 0.1  # of FP8's error: the acceptance is what is asked here
_COLOURS = {"plain": BLUE, "fp8": ORANGE}

Acceptance = tuple[float, ...]  # by position


@dataclass(frozen=True)
class EncodingComparison:
    """Acceptance on held-out plain states, a drafter per seed.

    ``lossless_is_identical``: the export of the lossless copy has the same bytes, so that the same
    drafters come of it.
    """

    plain: tuple[Acceptance, ...]
    fp8: tuple[Acceptance, ...]
    lossless_is_identical: bool

    def differences(self) -> Acceptance:
        """By position: mean acceptance from FP8 minus that from plain states."""
        return tuple(
            _mean(fp8) - _mean(plain)
            for fp8, plain in zip(_by_position(self.fp8), _by_position(self.plain), strict=True)
        )

    def spreads(self) -> Acceptance:
        """By position: the largest minus the smallest acceptance of the plain drafters."""
        return tuple(max(values) - min(values) for values in _by_position(self.plain))

    def metrics(self) -> dict[str, tuple[float, ...]]:
        """For ``metrics.json``."""
        return {"fp8_minus_plain": self.differences(), "spread_of_seeds": self.spreads()}

    def sentence(self) -> str:
        """The result in words, coarse enough for a rerun."""
        same = "has the same bytes, so that it trains the same drafter"
        if not self.lossless_is_identical:
            same = "HAS OTHER BYTES: it is not lossless"
        pairs = zip(self.differences(), self.spreads(), strict=True)
        beyond = [n for n, (lost, spread) in enumerate(pairs, 1) if abs(lost) > spread]
        seeds = f"{len(self.plain)} seeds"
        if not beyond:
            fp8 = f"changes the mean acceptance of {seeds} by less than the seeds differ"
        else:
            told = ", ".join(f"{self.differences()[n - 1]:+.2f} at position {n}" for n in beyond)
            fp8 = f"changes the mean acceptance of {seeds} by MORE than the seeds differ: {told}"
        return f"The export of a lossless copy {same}.\nFP8 {fp8}."

    def numbers(self) -> "pandas.DataFrame":
        """``encoding, seed, position, acceptance``."""
        import pandas

        rows = [
            (name, seed, position, share)
            for name in _COLOURS
            for seed, shares in enumerate(getattr(self, name))
            for position, share in enumerate(shares, 1)
        ]
        return pandas.DataFrame(rows, columns=["encoding", "seed", "position", "acceptance"])

    @house_style
    def plot(self, title: str) -> "Figure":
        """A point per seed, and the mean of each encoding, by position."""
        figure, axes = new_figure(title, 3.6)
        for shift, (name, colour) in zip((-0.12, 0.12), _COLOURS.items(), strict=True):
            for position, values in enumerate(_by_position(getattr(self, name)), 1):
                place, mean = position + shift, _mean(values)
                axes.plot([place] * len(values), values, "o", color=colour, markersize=4)
                axes.plot([place - 0.08, place + 0.08], [mean, mean], color=colour, linewidth=2)
                axes.text(place, max(values) + 0.03, f"{mean:.3f}", ha="center", fontsize=8)
            axes.plot([], [], "o", color=colour, label=name)
        axes.set_ylim(0, 1.05)
        axes.set_xticks(range(1, POSITIONS + 1))
        axes.set_xlabel("position of the proposal")
        axes.set_ylabel("acceptance on held-out plain states")
        axes.legend(frameon=False, fontsize=9, title="trained on states stored as")
        return figure


def compare_encodings(
    parameters: ExportParameters,
    store: Store,
    on_line: Callable[[str], None] = lambda _line: None,
) -> EncodingComparison | None:
    """Train ``encoding_seeds`` drafters on plain states and as many on FP8 ones.

    Writes ``encodings``, ``export/encodings`` and ``drafters`` below the run. None when the
    parameters ask for none.
    """
    seeds = parameters.encoding_seeds or (_DEMO_SEEDS if parameters.is_demo else 0)
    if not seeds or not parameters.trains:
        return None
    exports = {name: _export(parameters, store, name) for name in ("plain", "lossless", "fp8")}
    jobs = [(name, seed) for seed in range(seeds) for name in _COLOURS]
    found: dict[tuple[str, int], Acceptance] = {}
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")  # a kernel has threads
    with ProcessPoolExecutor(processes, context) as pool:
        futures = {
            pool.submit(
                _train,
                exports[name],
                exports["plain"],
                model_folder(parameters, store),
                parameters.run_path / "drafters" / f"{name}-seed-{seed}",
                parameters.num_steps,
                seed,
            ): (name, seed)
            for name, seed in jobs
        }
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            on_line(f"{len(found)} of {len(jobs)} drafters are trained")
    on_line(f"ready: {len(jobs)} drafters of {parameters.num_steps} steps each")
    plain, fp8 = (tuple(found[name, seed] for seed in range(seeds)) for name in _COLOURS)
    return EncodingComparison(plain, fp8, _same_rows(exports["plain"], exports["lossless"]))


def _export(parameters: ExportParameters, store: Store, encoding: Encoding) -> Path:
    run = parameters.run_path
    recode_store(store, run / "encodings" / encoding, encoding, _LIMIT)
    out = run / "export" / "encodings" / encoding
    export_into(out, parameters, Store(run / "encodings" / encoding))
    return out


def _train(
    export: Path, judged_on: Path, model: Path, checkpoint: Path, num_steps: int, seed: int
) -> Acceptance:
    training = train_drafter(export, judged_on, model, checkpoint, num_steps, seed, num_points=1)
    return training.acceptance


def _same_rows(first: Path, second: Path) -> bool:
    rows = [{row.file for row in read_rows(out).values()} for out in (first, second)]
    return rows[0] == rows[1] and all(
        (first / file).read_bytes() == (second / file).read_bytes() for file in rows[0]
    )


def _by_position(drafters: Sequence[Acceptance]) -> list[Acceptance]:
    return list(zip(*drafters, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
