"""An export read back through the trainer's own loader and compared with the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hslib.errors import ExportError
from hslib.export import fp8
from hslib.export.export import ExportReport, errors_sentence, read_rows
from hslib.export.reading import Bridge, Reading
from hslib.store import Store, StoredSample

if TYPE_CHECKING:
    import torch

_ROUNDING = 2**-7  # two roundings to bf16, relative


@dataclass(frozen=True, eq=False)
class Loaded:
    """One row as a trainer's loader gives it."""

    input_ids: "torch.Tensor"  # int64 [T]
    loss_mask: "torch.Tensor"  # int64 [T]
    aux: "torch.Tensor"  # bf16 [T, K * H]
    last: "torch.Tensor | None"  # bf16 [T, H], on the drafter's side of the norm

    def states(self) -> "torch.Tensor":
        """bf16 [T, K + 1, H]"""
        import torch

        assert self.last is not None, "only speculators' reader gives fp8, and always the last"
        tokens, size = self.last.shape
        return torch.cat([self.aux.view(tokens, -1, size), self.last[:, None]], 1)


@dataclass(frozen=True)
class RoundTrip:
    """How many rows came back as they are stored; all counts are of rows."""

    loader: str
    rows: int
    ids_equal: int
    masks_equal: int
    aux_equal: int  # bit for bit; fp8: with the bits that rounding gives
    final_equal: int | None  # the same, or normed again and within rounding; None = it isn't read
    bit_for_bit: bool  # which of the two
    fp8_errors: dict[str, float]  # relative, by state, the largest of all rows; empty in bf16

    @property
    def is_whole(self) -> bool:
        counts = (self.ids_equal, self.masks_equal, self.aux_equal, self.final_equal)
        return all(count in (self.rows, None) for count in counts)

    def facts(self) -> dict[str, str]:
        """For a table."""
        exact = "as fp8 rounds them" if self.fp8_errors else "bit for bit"
        how = exact if self.bit_for_bit else "within bf16 rounding, once normed again"
        found = {
            "read by": self.loader,
            "rows": str(self.rows),
            "ids equal": str(self.ids_equal),
            "loss masks equal": str(self.masks_equal),
            f"aux states equal, {exact}": str(self.aux_equal),
        }
        if self.final_equal is not None:
            found[f"final states equal, {how}"] = str(self.final_equal)
        if self.fp8_errors:
            found["fp8, relative error at most"] = errors_sentence(self.fp8_errors)
        return found

    def require_whole(self) -> None:
        """Raises :class:`ExportError` unless every row came back as it is stored."""
        if not self.is_whole:
            raise ExportError(
                f"{self.loader} reads other data than the store holds",
                **self.facts(),
                fix="do not train on it; export into a new folder",
            )


def read_back(store: Store, report: ExportReport) -> RoundTrip:
    """Compare every row of an export with its stored sample, through the trainer's own code.

    Raises:
        ExportError: the trainer is not installed, or its loader drops a row.
    """
    readers = {"speculators": _by_speculators, "specforge": _by_specforge}
    loader, loaded = readers[report.trainer](report)
    indices = [row.index for row in read_rows(report.path).values()]
    same, errors = [], []
    for index, row in zip(indices, loaded, strict=True):
        stored = store[index]
        wanted = _wanted(stored, report.reading)
        if report.dtype == "fp8":
            errors.append(fp8.relative_errors(wanted, row.states()))
            wanted = fp8.dequantise(*fp8.quantise(wanted))
        same.append(tuple(_same(stored, row, wanted, report)))
    ids, masks, aux, last = (sum(column) for column in zip(*same, strict=True))
    worst = [max(column) for column in zip(*errors, strict=True)]
    return RoundTrip(
        loader,
        len(indices),
        ids_equal=ids,
        masks_equal=masks,
        aux_equal=aux,
        final_equal=last if report.reading.bridge else None,
        bit_for_bit=not _is_normed_again(report),
        fp8_errors=dict(zip(report.reading.state_names, worst, strict=False)),
    )


def _wanted(stored: StoredSample, reading: Reading) -> "torch.Tensor":
    """bf16 [T, K + 1, H], by the boundaries' names and not as the export picked them."""
    import torch

    states = [stored.layer(boundary) for boundary in reading.boundaries]
    if reading.bridge is not None:
        states.append(reading.bridge.carried(_last(stored, reading.bridge)))
    return torch.stack(states, 1)


def _last(stored: StoredSample, bridge: Bridge) -> "torch.Tensor":
    return stored.final if bridge.boundary is None else stored.layer(bridge.boundary)


def _is_normed_again(report: ExportReport) -> bool:
    """Whether the stored state, and not what was written, is compared: its norm was undone."""
    bridge = report.reading.bridge
    return bool(bridge and bridge.norm and bridge.wanted == "pre") and report.dtype == "bf16"


def _same(
    stored: StoredSample, row: Loaded, wanted: "torch.Tensor", report: ExportReport
) -> Iterator[bool]:
    """Ids, mask, aux states, last state; ``wanted``: bf16 [T, K + 1, H], as the reader gives it."""
    import torch

    bridge, num_aux = report.reading.bridge, len(report.reading.columns)
    yield torch.equal(row.input_ids, stored.input_ids)
    yield row.loss_mask.tolist() == stored.loss_mask.tolist()
    yield torch.equal(row.aux, wanted[:, :num_aux].flatten(1))
    if bridge is None or row.last is None:
        yield bridge is None and row.last is None
    elif bridge.norm is not None and _is_normed_again(report):
        again = bridge.norm.normed(row.last).float()
        before = _last(stored, bridge).float()
        yield torch.allclose(again, before, rtol=_ROUNDING, atol=1e-6)
    else:
        yield torch.equal(row.last, wanted[:, -1])


def _by_speculators(report: ExportReport) -> tuple[str, Iterator[Loaded]]:
    dataset = fp8.open_dataset(report.path)
    keys = ("input_ids", "loss_mask", "hidden_states", "verifier_last_hidden_states")

    def rows() -> Iterator[Loaded]:
        for number in range(len(dataset)):
            item = dataset[number]
            if not isinstance(item, dict):
                raise ExportError(f"speculators drops row {number}: {item}", path=str(report.path))
            yield Loaded(*(item[key] for key in keys))

    return "speculators.train.data.ArrowDataset", rows()


def _by_specforge(report: ExportReport) -> tuple[str, Iterator[Loaded]]:
    try:
        from specforge.algorithms.builtin import builtin_algorithm_registry
        from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    except ImportError as error:
        raise ExportError(
            f"SpecForge is not installed here: {error}",
            fix="pip install --no-deps specforge==0.2.0, or read the export where it is trained",
        ) from error
    algorithm = builtin_algorithm_registry().resolve(report.drafter)
    offline, features = algorithm.providers.offline_for("text"), LocalFeatureStore()
    reader = offline.build_reader(
        str(report.path / "hidden_states"), run_id="read", ttt_length=1, max_len=2**20
    )
    # it lists files in path order, in which 10 comes before 2
    refs = {ref.feature_store_uri: ref for ref in reader}
    normalise = offline.build_normalizer(2**20)
    last = {"eagle3": "target", "dspark": "target_last_hidden_states"}.get(report.drafter)
    aux = "hidden_state" if report.drafter == "eagle3" else "hidden_states"

    def rows() -> Iterator[Loaded]:
        for row in read_rows(report.path).values():
            raw, _ = features.get(refs[f"file://{(report.path / row.file).absolute()}"])
            item = normalise(raw)
            # eagle3's normaliser clears the last token's mask: nothing follows it
            yield Loaded(
                item["input_ids"][0],
                raw["loss_mask"],
                item[aux][0],
                item[last][0] if last else None,
            )

    return f"specforge's offline reader and normaliser of {report.drafter}", rows()
