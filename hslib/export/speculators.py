"""What speculators 0.9 reads offline (``train.data.ArrowDataset``), for all of its drafters.

::

    data-*.arrow, dataset_info.json, state.json    datasets' save_to_disk: input_ids and
                                                   loss_mask list<int64>, seq_len int64
    hidden_states/hs_{row}.safetensors             hidden_states bf16 [T, K + 1, H], aux
                                                   ascending, then the last state BEFORE the norm
                                                   (float8 and hidden_states_scales: ``fp8``);
                                                   token_ids int64 [T]
    token_freq.pt, d2t.npy, t2d.npy                draft vocabulary
    train.sh                                       the command, layer ids as speculators counts

speculators applies the model's final norm itself; mtp reads the last state alone, so K is 0. It
drops a row whose ``token_ids`` differ from ``input_ids`` with a warning only, and cuts rows at
``--total-seq-len``.
"""

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hslib.errors import ExportError
from hslib.export import fp8
from hslib.export.drafters import Dtype, find_drafter
from hslib.export.format import Context
from hslib.export.reading import Reading
from hslib.files import header_bytes, write_atomically
from hslib.model import ONE_PLUS_WEIGHT, from_boundaries, open_weights
from hslib.store import StoredSample

if TYPE_CHECKING:
    import torch

# speculators 0.9.0 multiplies by 1 + weight for these model types alone
# (its GEMMA_STYLE_FINAL_NORM_MODEL_TYPES), and only in the DFlash family; else by the weight
_READ_AS_ONE_PLUS = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "qwen3_5",
        "qwen3_5_text",
        "recurrent_gemma",
    }
)
_NORM_AS_THE_DRAFT = {"eagle3", "peagle"}  # whose layers are Llama's or Qwen3's
# keys of its mtp_model_classes
_MTP_MODELS = frozenset({"qwen3", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
_TOKENS_AT_ONCE = 1024  # long rows are gigabytes


class SpeculatorsFormat:
    """Writes a store for ``speculators train``."""

    def __init__(self, drafter: str = "eagle3", dtype: Dtype = "bf16") -> None:
        self.drafter = find_drafter("speculators", drafter)
        self.dtype: Dtype = dtype

    def check(self, model_type: str, model_path: Path) -> None:
        """Raises :class:`ExportError` for models whose norm speculators computes wrongly, and for
        mtp where the model has no layer for it."""
        name = self.drafter.name
        if name == "mtp":
            _check_mtp(model_type, model_path)
            return
        read_right = frozenset() if name in _NORM_AS_THE_DRAFT else _READ_AS_ONE_PLUS
        if model_type in ONE_PLUS_WEIGHT - read_right:
            family = (
                "; its dflash family knows that norm" if model_type in _READ_AS_ONE_PLUS else ""
            )
            raise ExportError(
                f"speculators 0.9.0 would norm with the weight alone for {name} where {model_type} "
                "uses 1 + weight: its targets would be wrong in silence",
                fix="export for specforge, which reads the state after the norm" + family,
            )

    def file(self, row: int) -> str:
        return f"hidden_states/hs_{row}.safetensors"

    def parts(self, sample: StoredSample, reading: Reading) -> Iterator[bytes | memoryview]:
        """The file's bytes; aux states as stored, the last one carried before the norm."""
        states = sample.hidden_states
        tokens, _, size = states.shape
        shape = (tokens, len(reading.state_names), size)
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            "hidden_states": ("F8_E4M3" if self.dtype == "fp8" else "BF16", shape),
            "token_ids": ("I64", (tokens,)),
        }
        if self.dtype == "fp8":
            tensors[fp8.SCALES] = ("F32", (tokens, 1, 1))
        yield header_bytes(tensors, {})
        scales = []
        whole = self.dtype == "bf16" and reading.is_as_stored(states.shape[1])
        for piece in [states] if whole else states.split(_TOKENS_AT_ONCE):
            read = reading.all(piece)
            if self.dtype == "fp8":
                read, of_piece = fp8.quantise(read)
                scales.append(of_piece)
            yield _bytes(read)
        yield _bytes(sample.input_ids)
        for of_piece in scales:
            yield _bytes(of_piece)

    def notes(self, _model_path: Path) -> tuple[str, ...]:
        return ()

    def train_command(self, out: Path) -> str:
        return f"bash {shlex.quote(str(out / 'train.sh'))}"

    def finish(self, context: Context) -> None:
        import torch

        _save_table(context)
        torch.save(context.token_counts, context.out / "token_freq.pt")
        for name in ("d2t", "t2d"):
            path = context.out / f"{name}.npy"
            path.unlink(missing_ok=True)
            if context.vocabulary is not None:
                np.save(path, getattr(context.vocabulary, name))
        script = _command(context, self.drafter.name, self.dtype)
        write_atomically(context.out / "train.sh", script.encode())


def _check_mtp(model_type: str, model_path: Path) -> None:
    if model_type not in _MTP_MODELS:
        raise ExportError(
            f"speculators 0.9.0 trains mtp for the model types {sorted(_MTP_MODELS)}, this is "
            f"{model_type}",
            fix="choose another drafter",
        )
    if not any(name.startswith("mtp.") for name in open_weights(model_path).shard_of):
        raise ExportError(
            f"speculators' mtp goes on with the model's own layer, and {model_path} has no tensor "
            "mtp.*",
            fix="give the checkpoint with its MTP weights, or choose another drafter",
        )


def _bytes(tensor: "torch.Tensor") -> memoryview:
    import torch

    bits_of = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    bits = tensor.contiguous().view(bits_of.get(tensor.dtype, tensor.dtype))
    return bits.numpy().reshape(-1).view(np.uint8).data


def _save_table(context: Context) -> None:
    """The rows as ``datasets`` saves them; memory holds one row at a time."""
    import datasets
    from datasets.arrow_writer import ArrowWriter

    numbers = datasets.List(datasets.Value("int64"))
    features = datasets.Features(
        {"input_ids": numbers, "loss_mask": numbers, "seq_len": datasets.Value("int64")}
    )
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=context.out) as folder:
        written = str(Path(folder) / "rows.arrow")
        writer = ArrowWriter(features=features, path=written)
        for tokens in context.tokens():
            ids = tokens.input_ids.numpy()
            mask = tokens.loss_mask.numpy().astype(np.int64)
            writer.write({"input_ids": ids, "loss_mask": mask, "seq_len": len(ids)})
        writer.finalize()
        for old in context.out.glob("data-*.arrow"):
            old.unlink()
        table = datasets.Dataset.from_file(written).with_format("torch")
        table.save_to_disk(str(context.out))


def _command(context: Context, drafter: str, dtype: Dtype) -> str:
    """A shell script that runs ``speculators train`` on this export; no row is cut."""
    reading, num_layers = context.reading, context.store.manifest.num_layers
    ids = from_boundaries(reading.boundaries, "speculators", num_layers)
    options: dict[str, list[Any]] = {
        "--speculator-type": [drafter],
        "--verifier-name-or-path": [context.model_path.absolute()],
        "--data-path": [context.out.absolute()],
        **({"--target-layer-ids": list(ids)} if ids else {}),
        **({"--hidden-states-backend": ["fp8"]} if dtype == "fp8" else {}),
        "--on-missing": ["raise"],
        "--total-seq-len": [max(8192, context.longest)],
        "--save-path": [context.out.absolute() / "checkpoints"],
    }
    if context.vocabulary is not None:
        options["--draft-vocab-size"] = [len(context.vocabulary.d2t)]
        options["--d2t-path"] = [context.out.absolute() / "d2t.npy"]
        options["--t2d-path"] = [context.out.absolute() / "t2d.npy"]
    lines = [f"  {name} {shlex.join(map(str, values))}" for name, values in options.items()]
    return (
        "#!/bin/sh\n"
        "# layer ids are boundaries, as in the store; the final state, before its norm, is last\n"
        "# rows longer than --total-seq-len would be cut: it is no less than the longest row\n"
        "speculators train \\\n" + " \\\n".join(lines) + ' \\\n  "$@"\n'
    )
