"""The embedded default: a tiny trained model of Kimi-K2's architecture and 256 conversations.

README.md beside this file says how both were made; what made them is in tests/make/demo.
"""

from pathlib import Path

HERE = Path(__file__).parent


def model_path() -> Path:
    """Folder of the model and its tokenizer, in the layout of a Hugging Face checkpoint."""
    return HERE / "model"


def dataset_path() -> Path:
    """JSONL file of the conversations: `id`, `messages`, `input_ids`, `loss_mask` per line."""
    return HERE / "data.jsonl"


def case_study_path() -> Path:
    """The log of a job that filed dumps by a predicted counter, as its owner reported it."""
    return HERE / "case_study.log"
