"""What several test files need: rows, references, hand-made dumps."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from hs_dump.dump_file import DumpFile

from hslib import demo
from hslib.dataset import Sample
from hslib.model.folder import read_model
from hslib.server.dumps import DumpDir, Expected, validate
from hslib.store.manifest import Manifest
from hslib.store.reader import Store
from hslib.store.writer import StoreWriter

BOUNDARIES = (1, 3, 5)
CHUNK = 64  # tokens of a prefill chunk; a 200-token row comes in four forward passes
EXPECTED = Expected(BOUNDARIES, hidden_size=16)


def random_sample(index: int, num_tokens: int, vocab_size: int = 512, seed: int = 0) -> Sample:
    rng = np.random.default_rng((seed, index))
    ids = rng.integers(3, vocab_size, num_tokens, dtype=np.int32)
    mask = rng.integers(0, 2, num_tokens, dtype=np.uint8)
    return Sample(index, f"row-{index}", ids, mask)


def write_rows(path: Path, samples: Sequence[Sample]) -> Path:
    """A JSONL dataset of these samples."""
    lines = [
        json.dumps(
            {"id": s.id, "input_ids": s.input_ids.tolist(), "loss_mask": s.loss_mask.tolist()}
        )
        for s in samples
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_dump(
    root: Path, name: str, sample: Sample, expected: Expected = EXPECTED, **meta: Any
) -> torch.Tensor:
    """A dump made by the plugin's own writer; returns its states, bf16 [T, L, H]."""
    shape = (sample.num_tokens, len(expected.boundaries) + 1, expected.hidden_size)
    generator = torch.Generator().manual_seed(sample.index)
    states = torch.randn(shape, generator=generator).to(torch.bfloat16)
    put_dump(root, name, sample.input_ids, states, **{"boundaries": expected.boundaries, **meta})
    return states


def put_dump(
    root: Path,
    name: str,
    input_ids: np.ndarray,
    states: torch.Tensor,
    boundaries: Sequence[int] = BOUNDARIES,
    witness: float = 0.0025,
    **meta: Any,
) -> None:
    """Publish given states bf16 [T, L, H] as a dump; NaN for one that no layer testified to."""
    root.mkdir(parents=True, exist_ok=True)
    tokens, count, hidden = states.shape
    file = DumpFile(root, name, (tokens, count, hidden))
    file.append(torch.from_numpy(input_ids.astype(np.int64)), list(states.unbind(1)))
    file.witnessed(min(tokens, 4), np.full(count, witness))
    facts = {
        "rid": name,
        "boundaries": list(boundaries),
        "stores_final": states.shape[1] > len(boundaries),
        "pid": 1,
        "plugin_version": "1.0.0",
        "sglang_version": "0.5.23",
    }
    file.publish({**facts, **meta})


def proven(boundaries: Sequence[int]) -> dict[str, Any]:
    """What plugin.json says of states that their layers testified to."""
    witness = {"seam": "stage", "witness": "its norm", "error": 0.0025, "tolerance": 0.02}
    states = [*(f"boundary {boundary}" for boundary in boundaries), "final"]
    return {"proven": True, "capture": [{"state": state, **witness} for state in states]}


def demo_samples(count: int, longest: int = 300) -> list[Sample]:
    """The demo's first rows of at most ``longest`` tokens, under their own indices."""
    found = []
    for index, line in enumerate(demo.dataset_path().read_text("utf-8").splitlines()):
        row = json.loads(line)
        if len(row["input_ids"]) <= longest:
            ids, mask = np.array(row["input_ids"], np.int32), np.array(row["loss_mask"], np.uint8)
            found.append(Sample(index, row["id"], ids, mask))
    return found[:count]


def model_store(
    path: Path,
    model_path: Path,
    samples: Sequence[Sample],
    boundaries: Sequence[int],
    change: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    **manifest: Any,
) -> Store:
    """A store of transformers' own states of these samples: what a right server would dump.

    Args:
        change: of each sample's states bf16 [T, L, H]; a fault to plant.
    """
    model = read_model(model_path)
    facts = {
        "boundaries": tuple(boundaries),
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "model_class": model.architecture,
        "model_path": str(model_path),
        "model_config_hash": model.config_hash,
        "tokenizer_digest": "",
        "dataset_path": "rows.jsonl",
        "dataset_digest": "",
        "sglang_version": "",
        "plugin_version": "",
        "server": {},
    }
    expected = Expected(tuple(boundaries), model.hidden_size)
    dumps = DumpDir(path.with_name(f"{path.name}-dumps"))
    with StoreWriter(path, Manifest(**{**facts, **manifest})) as writer:
        for sample in samples:
            by_boundary = reference_states(model_path, sample.input_ids)
            states = torch.stack([by_boundary[b] for b in (*boundaries, -1)], 1).bfloat16()
            put_dump(dumps.root, "d", sample.input_ids, change(states), boundaries)
            dump = dumps.load("d")
            writer.put(sample, dump, validate(dump, sample, expected), 1, 0.01)
    return Store(path)


def rehash(root: Path, name: str) -> None:
    """Make a tampered dump's checksums agree again, so that only deeper checks can object."""
    path = root / name / "meta.json"
    meta = json.loads(path.read_text())
    dump = DumpDir(root).load(name)
    meta["checksums"]["hidden_states"] = xxhash.xxh3_64_hexdigest(dump.hidden_states.data)
    path.write_text(json.dumps(meta))


def reference_states(model_path: Path, input_ids: np.ndarray) -> list[torch.Tensor]:
    """transformers' ``hidden_states`` of one row, float32 [T, H] each, by boundary.

    The last one is the final state, after the norm; :func:`reference_last` is before it.
    """
    states, _ = _run_reference(model_path, input_ids)
    return states


def reference_last(model_path: Path, input_ids: np.ndarray) -> torch.Tensor:
    """The last layer's output before the final norm, float32 [T, H]: boundary n."""
    _, last = _run_reference(model_path, input_ids)
    return last


_INNER = ("model", "transformer", "backbone")
_FINAL_NORMS = ("norm", "norm_f", "ln_f", "final_layernorm", "embedding_norm")


def _run_reference(
    model_path: Path, input_ids: np.ndarray
) -> tuple[list[torch.Tensor], torch.Tensor]:
    model = load_reference(model_path)
    inner = next(
        getattr(model, n) for n in ("model", "transformer", "backbone") if hasattr(model, n)
    )
    inner = getattr(inner, "language_model", inner)
    norm = next(getattr(inner, name) for name in _FINAL_NORMS if hasattr(inner, name))
    entered: list[torch.Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _module, given: entered.append(given[0]))
    try:
        with torch.no_grad():
            ids = torch.from_numpy(input_ids.astype(np.int64))[None]
            states = inner(ids, output_hidden_states=True).hidden_states
    finally:
        hook.remove()
    return [state[0].float() for state in states], entered[-1][0].float()


_references: dict[Path, Any] = {}


def load_reference(model_path: Path) -> Any:
    import transformers

    if model_path not in _references:
        config = transformers.AutoConfig.from_pretrained(model_path)
        is_text = type(config) in transformers.AutoModelForCausalLM._model_mapping
        auto = (
            transformers.AutoModelForCausalLM
            if is_text
            else transformers.AutoModelForImageTextToText
        )
        # transformers' default attention leaves out what a score is capped at (Gemma-2)
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        more = {"attn_implementation": "eager"} if capped else {}
        _references[model_path] = auto.from_pretrained(
            model_path, dtype=torch.bfloat16, **more
        ).eval()
    return _references[model_path]


def relative_errors(states: torch.Tensor, references: Sequence[torch.Tensor]) -> list[float]:
    """``|states - reference| / |reference|`` (Frobenius) against each boundary."""
    found = states.float()
    return [float((found - ref).norm() / ref.norm()) for ref in references]
