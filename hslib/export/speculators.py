"""What speculators 0.9 reads offline (``speculators.train.data.ArrowDataset``).

::

    data-*.arrow, dataset_info.json, state.json    datasets' save_to_disk: input_ids and
                                                   loss_mask list<int64>, seq_len int64
    hidden_states/hs_{row}.safetensors             hidden_states bf16 [T, K + 1, H], aux
                                                   ascending, then final BEFORE the norm;
                                                   token_ids int64 [T]
    token_freq.pt, d2t.npy, t2d.npy                draft vocabulary
    train.sh                                       the command, layer ids as speculators counts

speculators applies the model's final norm itself. It drops a row whose ``token_ids`` differ
from ``input_ids`` with a warning only, and cuts rows at ``--total-seq-len``.
"""

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hslib.errors import ExportError
from hslib.export.format import Bridge, Context
from hslib.files import header_bytes, write_atomically
from hslib.model import ONE_PLUS_WEIGHT, Side, from_boundaries
from hslib.store import Manifest, StoredSample

if TYPE_CHECKING:
    import torch

# speculators 0.9.0 multiplies by 1 + weight for these model types alone
# (its GEMMA_STYLE_FINAL_NORM_MODEL_TYPES), for all others by the weight
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
_TOKENS_AT_ONCE = 1024  # long rows are gigabytes


class SpeculatorsFormat:
    """Writes a store for ``speculators train``."""

    name = "speculators"
    final_side: Side = "pre"

    def check(self, manifest: Manifest, model_type: str) -> None:
        """Raises :class:`ExportError` for models whose norm speculators computes wrongly."""
        del manifest
        if model_type in ONE_PLUS_WEIGHT - _READ_AS_ONE_PLUS:
            raise ExportError(
                f"speculators 0.9.0 would norm with the weight alone where {model_type} uses "
                "1 + weight: its targets would be wrong in silence",
                fix="export for specforge, which reads the state after the norm",
            )

    def file(self, row: int) -> str:
        return f"hidden_states/hs_{row}.safetensors"

    def parts(self, sample: StoredSample, bridge: Bridge) -> Iterator[bytes | memoryview]:
        """The file's bytes; aux states as stored, final carried before the norm."""
        states = sample.hidden_states
        tokens = int(states.shape[0])
        yield header_bytes(
            {"hidden_states": ("BF16", tuple(states.shape)), "token_ids": ("I64", (tokens,))}, {}
        )
        if bridge.norm is None:
            yield _bytes(states)
        else:
            for piece in states.split(_TOKENS_AT_ONCE):
                carried = piece.clone()
                carried[:, -1] = bridge.final(piece[:, -1])
                yield _bytes(carried)
        yield _bytes(sample.input_ids)

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
        write_atomically(context.out / "train.sh", _command(context).encode())


def _bytes(tensor: "torch.Tensor") -> memoryview:
    import torch

    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    array = np.ascontiguousarray(bits.numpy())
    return array.reshape(-1).view(np.uint8).data


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


def _command(context: Context) -> str:
    """A shell script that runs ``speculators train`` on this export; no row is cut."""
    manifest = context.store.manifest
    ids = from_boundaries(manifest.boundaries, "speculators", manifest.num_layers)
    options: dict[str, list[Any]] = {
        "--speculator-type": ["eagle3"],
        "--verifier-name-or-path": [context.model_path.absolute()],
        "--data-path": [context.out.absolute()],
        "--target-layer-ids": list(ids),
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
