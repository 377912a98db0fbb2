"""Where a model's files are: in a folder, or in the Hugging Face hub's cache under an id.

An id such as ``Qwen/Qwen3-8B`` is looked up in the cache first, and fetched only when the cache
lacks what is needed. So a job that ran once runs again without a network, on the same revision.
"""

import json
import re
from pathlib import Path
from typing import Literal

from hslib.errors import ParameterError

Part = Literal["weights", "config", "tokenizer"]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CACHED = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/")
_SMALL = ("*.json", "*.jinja", "*.model", "*.py", "*.tiktoken", "*.txt")
# suffixes of the files that a server reads
_READ = frozenset({".bin", ".gguf", ".jinja", ".json", ".model", ".safetensors", ".tiktoken"})
_SECOND_COPIES = ("consolidated*", "metal/*", "onnx/*", "original/*", "*.gguf")


def local_folder(model: str | Path, part: Part = "weights") -> Path:
    """The absolute folder of a model; ``~`` and relative paths are read as in a shell.

    Args:
        model: a path, or an id of the hub such as ``Qwen/Qwen3-8B``. A folder of that name wins.
        part: what must be there: the config, the tokenizer, or the weights too.

    Raises:
        ParameterError: an id that is neither in the cache nor to be fetched.
    """
    path = Path(model).expanduser()
    if path.exists() or not _ID.fullmatch(str(model)):
        return path.absolute()
    return _cached(str(model), part) or _fetched(str(model), part)


def how_to_fetch(path: Path) -> str:
    """The command that fetches a folder of the hub's cache again; "" for other folders."""
    found = _CACHED.search(f"{path.absolute()}/")
    return f"hf download {found['owner']}/{found['name']}" if found else ""


def _cached(model: str, part: Part) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return folder if _holds(folder, part) else None


def _fetched(model: str, part: Part) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    wanted = (*_SMALL, "*.safetensors") if part == "weights" else _SMALL
    try:
        found = snapshot_download(
            model, allow_patterns=list(wanted), ignore_patterns=list(_SECOND_COPIES)
        )
    except (OSError, httpx.HTTPError, HFValidationError) as error:  # most are OSErrors
        why = str(error).strip().splitlines()[0]
    else:
        # without a network the hub's library returns the cached folder, even an incomplete one
        if _holds(Path(found), part):
            return Path(found)
        why = f"its files in the cache lack the {part}"
    raise ParameterError(
        f"model {model} is not a local folder, and can't be fetched from the hub: {why}",
        fix=f"run `hf download {model}` where there is a network (`hf auth login` first if it is "
        "gated), or give the path of a local folder",
    )


def _holds(folder: Path, part: Part) -> bool:
    if part == "tokenizer":
        return any(folder.glob("*token*")) or any(folder.glob("*.model"))
    has_config = (folder / "config.json").is_file()
    if part == "config":
        return has_config
    return has_config and any(folder.glob("*.safetensors")) and not missing_files(folder)


def missing_files(folder: Path) -> dict[str, str]:
    """The missing files of a model, ``{name: why it is expected}``.

    These are links whose target is gone (a hub cache without its blob), and shards that the index
    names. Only the index is opened.

    Raises:
        ParameterError: the index is not readable.
    """
    missing = {
        path.name: f"a link to {path.readlink()}, which is not there"
        for path in sorted(folder.iterdir())
        if path.is_symlink() and not path.exists() and path.suffix in _READ
    }
    indices = (folder / f"{name}.index.json" for name in ("model.safetensors", "pytorch_model.bin"))
    index = next((path for path in indices if path.is_file()), None)
    if index is None:
        return missing
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ParameterError(
            f"{index} is no index of shards: {error!r}", fix="fetch it again"
        ) from error
    absent = sorted(name for name in shards if not (folder / name).exists())
    return {**dict.fromkeys(absent, f"named in {index.name}"), **missing}
