"""Whether SGLang can read a model folder without running the code that lies in it.

Only SGLang knows which model types it has classes for. So its own loaders try, in the interpreter
that would run the server. That takes seconds, and is done only for folders whose configs name code
(``auto_map``).
"""

import json
import subprocess
from pathlib import Path

TRUST_FLAG = "--trust-remote-code"

_NAMING_CODE = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)
_TIMEOUT_S = 300.0  # SGLang's imports on a slow file system
# A processor is loaded for multimodal models whether or not the tokenizer is skipped.
_QUESTION = """
import json, sys
from sglang.srt.configs.model_config import is_multimodal_model
from sglang.srt.utils.hf_transformers_utils import get_config, get_processor, get_tokenizer
folder = sys.argv[1]
def complaint(load):
    try: load()
    except Exception as error: return str(error) or repr(error)
    return ""
def read():
    global config
    config = get_config(folder, trust_remote_code=False)
config = None
refused = complaint(read)
tokenizer = complaint(lambda: get_tokenizer(folder, trust_remote_code=False))
if config and is_multimodal_model(config.architectures or []):
    why = complaint(lambda: get_processor(folder, model_name=folder, trust_remote_code=False))
    if "trust_remote_code" in why: refused = why
print(json.dumps({"refused": refused, "loads_tokenizer": not tokenizer}))
"""


def remote_files(folder: Path) -> list[str]:
    """The configs of a folder that name code to be run (``auto_map``)."""
    return [name for name in _NAMING_CODE if _names_code(folder / name)]


def _names_code(path: Path) -> bool:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False  # absent or not JSON: reading the model reports that
    return isinstance(found, dict) and bool(found.get("auto_map"))


def ask_sglang(python: str, folder: Path) -> tuple[str, bool]:
    """Load config, tokenizer and processor as SGLang's server does, without remote code.

    Returns:
        Why it refuses config or processor, "" if it does not; and whether the tokenizer loads.

    If that does not run, nothing is refused, and the server is started without a tokenizer.
    """
    try:
        run = subprocess.run(
            [python, "-c", _QUESTION, str(folder)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        found = json.loads(run.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError, IndexError):
        return "", False
    first_sentence = " ".join(found["refused"].split()).partition(". ")[0]
    return first_sentence[:300], found["loads_tokenizer"]
