"""What SpecForge 0.2 reads offline (``OfflineManifestReader``), for all its drafters that do.

::

    hidden_states/rows_{a}-{b}/data_{row}.ckpt    2,000 per folder; torch.save of
        input_ids int64 [T], loss_mask int64 [T], and
        eagle3: aux_hidden_state bf16 [1, T, 3H], hidden_state bf16 [1, T, H] AFTER the norm
        dflash, domino: hidden_states bf16 [1, T, K * H]
        dspark: the same, target_last_hidden_states bf16 [1, T, H] AFTER the norm
    vocab_mapping/vocab_mapping.pt                d2t int64 [Vd], t2d bool [Vt]; eagle3 alone
    specforge.yaml, draft_config.json             layer ids as SpecForge counts them

SpecForge reads every ``.ckpt`` below its folder in path order.
"""

import io
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hslib.errors import ExportError
from hslib.export.draft_config import draft_config
from hslib.export.drafters import Dtype, find_drafter
from hslib.export.format import Context
from hslib.export.reading import Reading
from hslib.files import write_atomically
from hslib.model import embedding_and_head, from_boundaries, read_config
from hslib.store import StoredSample

_ROWS_A_FOLDER = 2000
# what SpecForge looks for unless told
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class SpecForgeFormat:
    """Writes a store for ``specforge train``."""

    def __init__(self, drafter: str = "eagle3", dtype: Dtype = "bf16") -> None:
        self.drafter = find_drafter("specforge", drafter)
        self.dtype: Dtype = dtype
        if dtype != "bf16":
            raise ExportError(
                f"SpecForge reads states in bf16 alone, not in {dtype}",
                fix="export in bf16, or for speculators",
            )

    def check(self, model_type: str, model_path: Path) -> None:
        """Any model will do: it applies no norm."""

    def file(self, row: int) -> str:
        first = row // _ROWS_A_FOLDER * _ROWS_A_FOLDER
        return f"hidden_states/rows_{first}-{first + _ROWS_A_FOLDER}/data_{row}.ckpt"

    def parts(self, sample: StoredSample, reading: Reading) -> Iterator[bytes | memoryview]:
        """The file's bytes, as torch.save writes them."""
        import torch

        states = sample.hidden_states
        aux, *last = self.drafter.tensors
        tensors = {
            "input_ids": sample.input_ids.clone(),
            "loss_mask": sample.loss_mask.long(),
            # [T, K, H] -> [1, T, K * H], side by side in ascending order
            aux: reading.aux(states).flatten(1).unsqueeze(0).contiguous(),
        }
        for name in last:
            tensors[name] = reading.last(states).contiguous().unsqueeze(0)
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        yield buffer.getbuffer()

    def notes(self, model_path: Path) -> tuple[str, ...]:
        if self.drafter.name != "eagle3" or list(model_path.glob("*.index.json")):
            return ()
        return (
            "SpecForge 0.2.0 finds the head's file in the model's *.index.json alone, which "
            f"{model_path} lacks: write model.safetensors.index.json there, with a weight_map of "
            "each tensor's name to its file",
        )

    def train_command(self, out: Path) -> str:
        return f"specforge train --config {shlex.quote(str(out / 'specforge.yaml'))}"

    def finish(self, context: Context) -> None:
        import torch

        mapping = context.out / "vocab_mapping" / "vocab_mapping.pt"
        mapping.unlink(missing_ok=True)
        manifest, vocabulary = context.store.manifest, context.vocabulary
        if vocabulary is not None:
            mapping.parent.mkdir(exist_ok=True)
            arrays = {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
            torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, mapping)
        draft = draft_config(
            self.drafter.name,
            read_config(context.model_path),
            _ids(context),
            context.reading.boundaries,
            manifest.num_layers,
            manifest.vocab_size,
            manifest.vocab_size if vocabulary is None else len(vocabulary.d2t),
        )
        text = json.dumps(draft, indent=2) + "\n"
        write_atomically(context.out / "draft_config.json", text.encode())
        notes = self.notes(context.model_path)
        settings = _settings(context, self.drafter.name, notes)
        write_atomically(context.out / "specforge.yaml", settings.encode())


def _ids(context: Context) -> list[int]:
    num_layers = context.store.manifest.num_layers
    return list(from_boundaries(context.reading.boundaries, "specforge", num_layers))


def _settings(context: Context, drafter: str, notes: Sequence[str]) -> str:
    """``specforge train --config`` for this export; JSON values are YAML."""
    out = context.out.absolute()
    settings: dict[str, Any] = {
        "model": {
            "target_model_path": str(context.model_path.absolute()),
            "draft_model_config": str(out / "draft_config.json"),
            **_tensor_names(context.model_path),
        },
        "data": {
            "hidden_states_path": str(out / "hidden_states"),
            "max_length": max(2048, context.longest),
        },
        "training": {"strategy": drafter},
        "run_id": drafter,
        "output_dir": str(out / "checkpoints"),
    }
    if drafter == "eagle3":  # the others take the ids of draft_config.json
        mapping = str(out / "vocab_mapping/vocab_mapping.pt") if context.vocabulary else ""
        settings["model"] |= {
            "aux_hidden_state_layer_ids": _ids(context),
            "vocab_mapping_path": mapping,
        }
    lines = [
        "# layer ids name the layer whose output is meant: the store's boundaries minus 1",
        "# rows longer than data.max_length would be cut: it is no less than the longest row",
    ]
    lines += [f"# {note}" for note in notes]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {name}: {json.dumps(inner)}" for name, inner in value.items()]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _tensor_names(model_path: Path) -> dict[str, str]:
    """The embedding's and the head's, where they are others than SpecForge looks for."""
    embedding, head = embedding_and_head(model_path)
    found = {"embedding_key": (embedding, _EMBEDDING), "lm_head_key": (head, _HEAD)}
    return {key: name for key, (name, usual) in found.items() if name and name != usual}
