"""What SpecForge 0.2 reads offline for EAGLE-3 (``OfflineManifestReader``).

::

    hidden_states/rows_{a}-{b}/data_{row}.ckpt    2,000 per folder; torch.save of
        input_ids int64 [T], loss_mask int64 [T],
        aux_hidden_state bf16 [1, T, 3H], hidden_state bf16 [1, T, H] AFTER the norm
    vocab_mapping/vocab_mapping.pt                d2t int64 [Vd], t2d bool [Vt]
    specforge.yaml, draft_config.json             layer ids as SpecForge counts them

SpecForge reads every ``.ckpt`` below its folder in path order, and wants exactly three aux layers.
"""

import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hslib.errors import ExportError
from hslib.export.format import Bridge, Context
from hslib.files import write_atomically
from hslib.model import Side, from_boundaries, read_config
from hslib.store import Manifest, StoredSample

_ROWS_A_FOLDER = 2000


class SpecForgeFormat:
    """Writes a store for ``specforge train``."""

    name = "specforge"
    final_side: Side = "post"

    def check(self, manifest: Manifest, model_type: str) -> None:
        """Raises :class:`ExportError` unless the store has exactly three aux layers."""
        del model_type
        if len(manifest.boundaries) != 3:
            raise ExportError(
                f"SpecForge reads exactly three aux layers, the store has "
                f"{len(manifest.boundaries)}",
                boundaries=manifest.boundaries,
                fix="extract with three boundaries, or export for speculators",
            )

    def file(self, row: int) -> str:
        first = row // _ROWS_A_FOLDER * _ROWS_A_FOLDER
        return f"hidden_states/rows_{first}-{first + _ROWS_A_FOLDER}/data_{row}.ckpt"

    def parts(self, sample: StoredSample, bridge: Bridge) -> Iterator[bytes | memoryview]:
        """The file's bytes, as torch.save writes them."""
        import torch

        states = sample.hidden_states
        buffer = io.BytesIO()
        torch.save(
            {
                "input_ids": sample.input_ids.clone(),
                "loss_mask": sample.loss_mask.long(),
                # [T, K, H] -> [1, T, K * H], aux side by side in ascending order
                "aux_hidden_state": states[:, :-1].flatten(1).unsqueeze(0).contiguous(),
                "hidden_state": bridge.final(states[:, -1]).contiguous().unsqueeze(0),
            },
            buffer,
        )
        yield buffer.getbuffer()

    def train_command(self, out: Path) -> str:
        return f"specforge train --config {shlex.quote(str(out / 'specforge.yaml'))}"

    def finish(self, context: Context) -> None:
        import torch

        mapping = context.out / "vocab_mapping" / "vocab_mapping.pt"
        mapping.unlink(missing_ok=True)
        if context.vocabulary is not None:
            mapping.parent.mkdir(exist_ok=True)
            arrays = {"d2t": context.vocabulary.d2t, "t2d": context.vocabulary.t2d}
            torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, mapping)
        draft = json.dumps(_draft_config(context), indent=2) + "\n"
        write_atomically(context.out / "draft_config.json", draft.encode())
        write_atomically(context.out / "specforge.yaml", _settings(context).encode())


def _ids(context: Context) -> list[int]:
    manifest = context.store.manifest
    return list(from_boundaries(manifest.boundaries, "specforge", manifest.num_layers))


def _draft_config(context: Context) -> dict[str, Any]:
    """One Llama layer of the model's width, as SpecForge's own EAGLE-3 drafts are."""
    config = read_config(context.model_path)
    hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
    draft_size = context.store.manifest.vocab_size
    if context.vocabulary is not None:
        draft_size = len(context.vocabulary.d2t)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": hidden_size,
        "target_hidden_size": hidden_size,
        "intermediate_size": config.get("intermediate_size", 3 * hidden_size),
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads", heads),
        "head_dim": hidden_size // heads,
        "hidden_act": config.get("hidden_act", "silu"),
        "max_position_embeddings": config.get("max_position_embeddings", 4096),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_theta": config.get("rope_theta", 10000.0),
        "vocab_size": context.store.manifest.vocab_size,
        "draft_vocab_size": draft_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": config.get("eos_token_id"),
        "pad_token_id": config.get("pad_token_id"),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": _ids(context),
        },
    }


def _settings(context: Context) -> str:
    """``specforge train --config`` for this export; JSON values are YAML."""
    out = context.out.absolute()
    mapping = str(out / "vocab_mapping/vocab_mapping.pt") if context.vocabulary else ""
    settings = {
        "model": {
            "target_model_path": str(context.model_path.absolute()),
            "draft_model_config": str(out / "draft_config.json"),
            "aux_hidden_state_layer_ids": _ids(context),
            "vocab_mapping_path": mapping,
        },
        "data": {
            "hidden_states_path": str(out / "hidden_states"),
            "max_length": max(2048, context.longest),
        },
        "training": {"strategy": "eagle3"},
        "run_id": "eagle3",
        "output_dir": str(out / "checkpoints"),
    }
    lines = [
        "# layer ids name the layer whose output is meant: the store's boundaries minus 1",
        "# rows longer than data.max_length would be cut: it is no less than the longest row",
    ]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {name}: {json.dumps(inner)}" for name, inner in value.items()]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"
