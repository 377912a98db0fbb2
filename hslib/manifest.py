"""What every sample of a store has in common, written before the first of them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from hslib.errors import StoreError
from hslib.identity import Canary, model_differences
from hslib.journal import sync_directory
from hslib.sizing import state_bytes

if TYPE_CHECKING:
    from hslib.storage import Storage

FORMAT = "hslib-store-1"
# What may differ between a store and a job that resumes it: rows are compared one by one,
# and the rest does not change what a state means.
_MAY_DIFFER = {"dataset_digest", "dataset_path", "server", "model_path", "plugin_version"}
# compared as a model is, not field by field
_MODEL = {"weights", "canary", "accepted_missing"}


class Manifest(pydantic.BaseModel):
    """``manifest.json``.

    ``boundaries`` names the aux states in tensor order; the final state, after the model's
    last norm (``final_norm``), is implied last. Digests are xxh3-128.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    format: str = FORMAT
    boundaries: tuple[int, ...]
    final_norm: str = "post"
    hidden_size: int
    num_layers: int
    vocab_size: int
    dtype: str = "bfloat16"
    model_class: str
    model_path: str
    model_config_hash: str
    tokenizer_digest: str
    dataset_path: str
    dataset_digest: str
    sglang_version: str
    plugin_version: str
    server: dict[str, Any]  # the effective settings that matter, never a secret
    # Stores of before have none of these: not recorded, and not compared.
    weights: dict[str, str] = {}  # group of tensors -> digest of the weights' files
    canary: Canary | None = None
    accepted_missing: tuple[str, ...] = ()  # parameters that the checkpoint lacks, by consent

    @property
    def state_bytes_per_token(self) -> int:
        """Of all stored layers and the final state, bf16."""
        return state_bytes(len(self.boundaries), self.hidden_size)


def differing_fields(stored: Manifest, wanted: Manifest) -> dict[str, tuple[Any, Any]]:
    """``{field: (stored, wanted)}`` for the fields that forbid a resume. Pure."""
    pairs = {name: (getattr(stored, name), getattr(wanted, name)) for name in Manifest.model_fields}
    found = {n: (a, b) for n, (a, b) in pairs.items() if a != b and n not in _MAY_DIFFER | _MODEL}
    weights, canaries = (stored.weights, wanted.weights), (stored.canary, wanted.canary)
    return found | model_differences(weights, canaries, stored.boundaries, stored.num_layers)


def read_manifest(storage: "Storage") -> Manifest:
    """Raises :class:`StoreError` when there is none or it is of another format."""
    try:
        return Manifest.model_validate_json(storage.read("manifest.json"))
    except FileNotFoundError:
        raise StoreError(
            "this is not a store: it has no manifest.json",
            path=str(storage.place),
            fix="check store_dir",
        ) from None
    except pydantic.ValidationError as error:
        raise StoreError(
            f"manifest.json is not of format {FORMAT}: {error}", path=_where(storage)
        ) from error


def write_or_check_manifest(storage: "Storage", wanted: Manifest) -> Manifest:
    """Write the manifest of a new store, or compare with the one that is there.

    Raises:
        StoreError: with ``differing`` = ``{field: (stored, wanted)}``.
    """
    try:
        storage.read("manifest.json")
    except FileNotFoundError:
        storage.write("manifest.json", wanted.model_dump_json(indent=1).encode())
        return wanted
    stored = read_manifest(storage)
    differing = differing_fields(stored, wanted)
    if differing:
        names = ", ".join(differing)
        raise StoreError(
            f"the store holds states of another kind: {names} differ",
            differing=differing,
            path=_where(storage),
            fix="use another store_dir, or the settings that the store was begun with",
        )
    return stored


def _where(storage: "Storage") -> str:
    return f"{storage.place}/manifest.json"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` durably, by rename within its directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
