"""``hf:NAME[:SPLIT]`` or ``hf:NAME:CONFIG:SPLIT``: a dataset of the Hugging Face hub.

Its files are taken from the hub's cache, and fetched only when they are not there: a job that ran
once runs again without a network, on the same revision. ``datasets`` says which of them are a
split's, and writes these as Arrow files into its own cache.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hslib.errors import DatasetError

_NAME = r"[A-Za-z0-9][\w.-]*"
_SOURCE = re.compile(
    rf"hf:(?P<name>{_NAME}(/{_NAME})?)((:(?P<config>{_NAME}))?:(?P<split>{_NAME}))?"
)


class HubSource(NamedTuple):
    name: str
    config: str | None
    split: str | None


def read_hub_source(text: str) -> HubSource:
    """Raises :class:`DatasetError` when it is not of that form."""
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise DatasetError(
            f"{text} is no dataset of the hub",
            fix="write hf:OWNER/NAME, hf:OWNER/NAME:SPLIT or hf:OWNER/NAME:CONFIG:SPLIT; for the "
            "first rows of a split set limit",
        )
    return HubSource(match["name"], match["config"], match["split"])


def local_snapshot(name: str) -> Path:
    """The folder with the dataset's files.

    Raises:
        DatasetError: they are neither in the cache nor to be had, with what fetches them.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, repo_type="dataset", local_files_only=True))
        if _holds_data(folder.rglob("*")):
            return folder
    except (HFValidationError, LocalEntryNotFoundError):
        pass
    why = "the cache has no data file of it"
    try:
        folder = Path(snapshot_download(name, repo_type="dataset"))
        if _holds_data(folder.rglob("*")):
            return folder
    except (OSError, httpx.HTTPError, HFValidationError) as error:  # most are OSErrors
        why = str(error).strip().splitlines()[0]
    raise DatasetError(
        f"the dataset {name} can't be fetched from the hub: {why}",
        fix=f"run `hf download --repo-type dataset {name}` where there is a network (`hf auth "
        "login` first if it is gated), or give files of your own",
    )


def _holds_data(files: Iterable[Path]) -> bool:
    """Whether there is more than the card, which ``datasets`` fetches alone at first."""
    return any(
        f.is_file() and f.suffix != ".md" and not f.name.startswith((".", "dataset_info"))
        for f in files
    )


def split_files(source: HubSource, folder: Path) -> list[Path]:
    """The Arrow files of a split, in its order.

    Raises:
        DatasetError: a split or config must be named, or ``datasets`` can't read the files.
    """
    import datasets

    try:
        found = datasets.load_dataset(str(folder), source.config, split=source.split)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        why = " ".join(str(error).replace(str(folder), source.name).split())
        raise DatasetError(
            f"datasets can't read {source.name}: {why[:400]}",
            fix="name config and split: hf:NAME:CONFIG:SPLIT",
        ) from error
    if source.split is None:
        if len(found) > 1:
            raise DatasetError(
                f"{source.name} has several splits: {', '.join(found)}",
                fix=f"name one: hf:{source.name}:{next(iter(found))}",
            )
        (found,) = found.values()
    return [Path(file["filename"]) for file in found.cache_files]
