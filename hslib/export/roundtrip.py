"""An export read back through the trainer's own loader and compared with the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hslib.errors import ExportError
from hslib.export.export import ExportReport, read_rows
from hslib.model import FinalNorm, read_final_norm
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
    final: "torch.Tensor"  # bf16 [T, H], on the trainer's side of the norm


@dataclass(frozen=True)
class RoundTrip:
    """How many rows came back as they are stored; all counts are of rows."""

    loader: str
    rows: int
    ids_equal: int
    masks_equal: int
    aux_equal: int  # bit for bit
    final_equal: int  # bit for bit, or normed again and within bf16 rounding
    bit_for_bit: bool  # which of the two

    @property
    def is_whole(self) -> bool:
        counts = (self.ids_equal, self.masks_equal, self.aux_equal, self.final_equal)
        return all(count == self.rows for count in counts)

    def facts(self) -> dict[str, str]:
        """For a table."""
        how = "bit for bit" if self.bit_for_bit else "within bf16 rounding, once normed again"
        return {
            "read by": self.loader,
            "rows": str(self.rows),
            "ids equal": str(self.ids_equal),
            "loss masks equal": str(self.masks_equal),
            "aux states equal, bit for bit": str(self.aux_equal),
            f"final states equal, {how}": str(self.final_equal),
        }

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
    norm = None
    if report.trainer == "speculators" and store.manifest.final_norm == "post":
        norm = read_final_norm(report.model_path)
    elif report.trainer == "specforge" and store.manifest.final_norm == "pre":
        raise ExportError("a normed state has no stored one to be compared with")
    same: list[tuple[bool, ...]] = []
    indices = [row.index for row in read_rows(report.path).values()]
    for index, row in zip(indices, loaded, strict=True):
        same.append(tuple(_same(store[index], row, norm)))
    ids, masks, aux, final = (sum(column) for column in zip(*same, strict=True))
    return RoundTrip(loader, len(indices), ids, masks, aux, final, bit_for_bit=norm is None)


def _same(stored: StoredSample, row: Loaded, norm: FinalNorm | None) -> Iterator[bool]:
    import torch

    final = row.final if norm is None else norm.normed(row.final)
    yield torch.equal(row.input_ids, stored.input_ids)
    yield row.loss_mask.tolist() == stored.loss_mask.tolist()
    yield torch.equal(row.aux, stored.hidden_states[:, :-1].flatten(1))
    if norm is None:
        yield torch.equal(final, stored.final)
    else:
        yield torch.allclose(final.float(), stored.final.float(), rtol=_ROUNDING, atol=1e-6)


def _by_speculators(report: ExportReport) -> tuple[str, Iterator[Loaded]]:
    from speculators.train.data import ArrowDataset

    dataset = ArrowDataset(2**20, report.path, on_missing="raise")
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
        from specforge.algorithms.eagle3.data import normalize_offline_sample
        from specforge.runtime.data_plane.feature_store import load_feature_file
    except ImportError as error:
        raise ExportError(
            f"SpecForge is not installed here: {error}",
            fix="pip install --no-deps specforge==0.2.0, or read the export where it is trained",
        ) from error

    def rows() -> Iterator[Loaded]:
        for row in read_rows(report.path).values():
            raw = load_feature_file(str(report.path / row.file))
            item = normalize_offline_sample(raw, max_len=2**20)
            # the normaliser clears the last token's mask: nothing follows it
            yield Loaded(
                item["input_ids"][0], raw["loss_mask"], item["hidden_state"][0], item["target"][0]
            )

    return "specforge's feature file loader and EAGLE-3 normaliser", rows()
