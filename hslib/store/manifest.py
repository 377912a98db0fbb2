"""``manifest.json``: what all samples of a store have in common; written before the first."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pydantic

from hslib.errors import StoreError
from hslib.model import Canary, model_differences
from hslib.store.encoding import CODECS, WORDS, Encoding
from hslib.store.sizes import state_bytes

if TYPE_CHECKING:
    from hslib.store.contract import Storage

FORMAT = "hslib-store-1"
# Fields that may differ when a job resumes a store: rows are compared one by one, and the others
# do not change what a state means.
_MAY_DIFFER = {
    "dataset_digest",
    "dataset_path",
    "server",
    "model_path",
    "plugin_version",
    "encoding",
}
# compared by model_differences, not field by field
_MODEL = {"weights", "canary", "accepted_missing"}


class Manifest(pydantic.BaseModel):
    """``manifest.json``.

    ``boundaries``: the layers' states in tensor order; the final state is last. ``final_norm``: the
    final state is stored after the model's last norm (``post``), before it (``pre``), or not at all
    (``none``). ``unwitnessed``: states that no layer's reading confirms, with the reason; None in
    stores written before there were witnesses. ``encoding``: of the samples that the store was
    begun with; each journal line says its own. Digests are xxh3-128.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    format: str = FORMAT
    boundaries: tuple[int, ...]
    final_norm: str = "post"
    hidden_size: int
    num_layers: int
    vocab_size: int
    dtype: str = "bfloat16"
    encoding: Encoding = "plain"
    model_class: str
    model_path: str
    model_config_hash: str
    tokenizer_digest: str
    dataset_path: str
    dataset_digest: str
    sglang_version: str
    plugin_version: str
    server: dict[str, Any]  # the effective settings that matter, never a secret
    # older stores lack these; what is not recorded is not compared
    weights: dict[str, str] = {}  # group of tensors -> digest of the weights' files
    canary: Canary | None = None
    accepted_missing: tuple[str, ...] = ()  # parameters that the checkpoint lacks, by consent
    unwitnessed: dict[str, str] | None = None

    @pydantic.model_validator(mode="after")
    def _keeps_what_it_has(self) -> Self:
        if self.encoding == "fp8-aux" and not self.stores_final:
            raise ValueError("encoding fp8-aux needs a final state; without one, use fp8")
        return self

    @property
    def stores_final(self) -> bool:
        return self.final_norm != "none"

    @property
    def num_states(self) -> int:
        return len(self.boundaries) + self.stores_final

    @property
    def state_names(self) -> tuple[str, ...]:
        """``"boundary 31"`` and ``"final"``, in tensor order."""
        names = tuple(f"boundary {boundary}" for boundary in self.boundaries)
        return (*names, "final") if self.stores_final else names

    def states_sentence(self) -> str:
        """What is stored, for a table."""
        listed = ", ".join(map(str, self.boundaries))
        final = f"final ({self.final_norm}-norm)" if self.stores_final else "no final state"
        return f"{listed}, {final}" if listed else final

    def encoding_sentence(self) -> str:
        """How new samples are kept, in words."""
        return f"{self.encoding}: {WORDS[self.encoding]}"

    def witness_sentence(self) -> str:
        """Whether the layers' readings confirm the states, in words."""
        if self.unwitnessed is None:
            return "not witnessed: written before layers were asked what they read"
        if self.unwitnessed:
            told = "; ".join(f"{state}: {why}" for state, why in self.unwitnessed.items())
            return f"NOT WITNESSED, as accept_unwitnessed allowed: {told}"
        return "witnessed: each is what its layer read, at a few tokens of every row"

    @property
    def state_bytes_per_token(self) -> int:
        """Bytes of all stored states per token."""
        return state_bytes(self.num_states, self.hidden_size)

    @property
    def stored_bytes_per_token(self) -> float:
        """The same in the files of new samples: about so for ``lossless``, else exact."""
        share = CODECS[self.encoding].share(self.num_states, self.hidden_size)
        return self.state_bytes_per_token * share


def differing_fields(stored: Manifest, wanted: Manifest) -> dict[str, tuple[Any, Any]]:
    """``{field: (stored, wanted)}`` for the fields that forbid a resume. Pure."""
    pairs = {name: (getattr(stored, name), getattr(wanted, name)) for name in Manifest.model_fields}
    if stored.unwitnessed is None:  # rows that are witnessed may join rows that are not
        del pairs["unwitnessed"]
    found = {n: (a, b) for n, (a, b) in pairs.items() if a != b and n not in _MAY_DIFFER | _MODEL}
    weights = (stored.weights, wanted.weights)
    # states of other layers say nothing of the model
    same_states = not {"boundaries", "final_norm"} & found.keys()
    canaries = (stored.canary, wanted.canary) if same_states else (None, None)
    return found | model_differences(weights, canaries, stored.boundaries, stored.num_layers)


def find_manifest(storage: "Storage") -> Manifest | None:
    """The manifest, None where there is none; raises :class:`StoreError` for another format."""
    try:
        return Manifest.model_validate_json(storage.read("manifest.json"))
    except FileNotFoundError:
        return None
    except pydantic.ValidationError as error:
        raise StoreError(
            f"manifest.json is not of format {FORMAT}: {error}", path=str(storage.url)
        ) from error


def read_manifest(storage: "Storage") -> Manifest:
    """The same; raises :class:`StoreError` where there is none."""
    found = find_manifest(storage)
    if found is None and isinstance(storage.url, Path) and not storage.url.exists():
        raise StoreError(
            "the store is missing: there is no such folder",
            path=str(storage.url),
            fix="check the path; notebook 03 makes a store",
        )
    if found is None:
        raise StoreError(
            "this is not a store: it has no manifest.json",
            path=str(storage.url),
            fix="give the store's own folder: RUN_DIR/store, unless store_dir was set",
        )
    return found


def write_or_check_manifest(storage: "Storage", wanted: Manifest) -> Manifest:
    """Write the manifest of a new store, or compare with the one that is there.

    Raises:
        StoreError: with ``differing`` = ``{field: (stored, wanted)}``.
    """
    stored = find_manifest(storage)
    if stored is None:
        storage.write("manifest.json", wanted.model_dump_json(indent=1).encode())
        return wanted
    require_same_kind(stored, wanted, str(storage.url))
    return stored


def require_same_kind(stored: Manifest, wanted: Manifest, where: str) -> None:
    """Raises :class:`StoreError` with ``differing`` = ``{field: (stored, wanted)}``."""
    differing = differing_fields(stored, wanted)
    if differing:
        names = ", ".join(differing)
        raise StoreError(
            f"the store holds states of another kind: {names} differ",
            differing=differing,
            path=where,
            fix="use another store_dir, or the settings that the store was begun with",
        )
