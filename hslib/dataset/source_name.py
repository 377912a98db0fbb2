"""What a source of rows is called: a path, a glob, or a name of the Hugging Face hub."""

from pathlib import Path

HUB = "hf:"


def absolute_source(source: str | Path) -> str:
    """The same source from any directory; ``~`` is read as in a shell."""
    text = str(source)
    is_path = "://" not in text and not text.startswith(HUB)
    return str(Path(text).expanduser().absolute()) if is_path else text
