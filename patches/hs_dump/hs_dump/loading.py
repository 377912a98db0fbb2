"""SGLang's loading of a model, watched: which parameters were filled, and from which files."""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hs_dump.checkpoint import fingerprint
from hs_dump.stack import CaptureError
from hs_dump.unloaded import Marks, at_fault, explain, is_accepted

logger = logging.getLogger(__name__)

_LOADER = "sglang.srt.model_loader.loader"
SEAMS = {
    f"{_LOADER}._initialize_model": ("model_config", "load_config"),
    f"{_LOADER}.DefaultModelLoader._prepare_weights": ("model_name_or_path",),
}
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
# Load formats whose loaders load nothing, or do not call the model's load_weights as it is.
_UNMARKED = ("dummy", "flash_rl")

Refuse = Callable[[str], None]  # writes the reason into plugin.json


class Loading:
    """What is known of how this process loads its model."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.checked = False  # that no parameter is missing
        self._files: set[Path] = set()
        self._folder = ""
        self._load_format = ""
        self._is_open = False

    def on_model(self, refuse: Refuse, model: Any, config: Any, load_config: Any) -> None:
        """A model was made and nothing is loaded yet. A draft model is left alone."""
        if config.is_draft_model or load_config.draft_model_idx is not None:
            return
        load_format = load_config.load_format
        self._load_format = str(getattr(load_format, "value", load_format))
        if self._load_format in _UNMARKED:
            return
        self._is_open = True
        load = model.load_weights

        @functools.wraps(load)
        def checked(weights: Any, *args: Any, **kwargs: Any) -> Any:
            del model.load_weights  # later loads replace weights that are there
            return self._load(load, refuse, model, weights, *args, **kwargs)

        model.load_weights = checked

    def on_files(self, found: tuple[str, list[str], bool]) -> None:
        """The loader has found the files that it will read."""
        if self._is_open:
            self._folder = self._folder or str(found[0])
            self._files |= {Path(file) for file in found[1] if "://" not in file}

    def _load(
        self, load: Any, refuse: Refuse, model: Any, weights: Any, *args: Any, **kwargs: Any
    ) -> Any:
        names: list[str] = []
        marks = Marks(model)
        result = load(_noting(weights, names), *args, **kwargs)
        missing = at_fault(marks.lift(), names, type(model).__name__)
        self._is_open = False
        patterns = os.environ.get("SGLANG_HS_DUMP_ACCEPT_MISSING", "").split(",")
        patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
        self.accepted = [str(found) for found in missing if is_accepted(found, patterns)]
        missing = [found for found in missing if not is_accepted(found, patterns)]
        if missing:
            problem = f"{type(model).__name__}: {explain(missing, names)}"
            refuse(problem)
            raise CaptureError(problem)
        self.checked = not marks.unmarked
        return result

    def describe(self, model_path: str) -> dict[str, Any]:
        """What plugin.json says of the weights; reads a few bytes per tensor of the files."""
        return {
            "weights": self._fingerprint(model_path),
            "weights_folder": self._folder,
            "weights_checked": self.checked,
            "accepted_missing": self.accepted,
        }

    def _fingerprint(self, model_path: str) -> dict[str, str]:
        """The files' fingerprint; empty for random weights, or when no file can be read."""
        if self._load_format == "dummy":
            return {}
        try:
            return fingerprint(sorted(self._files) or _files_at(Path(model_path)))
        except (OSError, ValueError) as error:
            logger.warning("hs_dump: no fingerprint of the weights: %s", error)
            return {}


def install(loading: Loading, registry: Any, hook_type: Any, refuse: Refuse) -> None:
    """Register the hooks, which see every model that this process loads."""

    def on_model(model: Any, model_config: Any, load_config: Any, *_a: Any, **_k: Any) -> None:
        loading.on_model(refuse, model, model_config, load_config)

    def on_files(found: Any, *_args: Any, **_kwargs: Any) -> None:
        loading.on_files(found)

    made, resolved = SEAMS
    registry.register(made, on_model, hook_type.AFTER)
    registry.register(resolved, on_files, hook_type.AFTER)


def _noting(weights: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name, tensor in weights:
        names.append(name)
        yield name, tensor


def _files_at(path: Path) -> list[Path]:
    """A folder's weight files, of the first format that is there; of a file the file itself."""
    if path.is_file():
        return [path]
    for pattern in _WEIGHTS:
        if found := sorted(path.glob(pattern)):
            return found
    return []
