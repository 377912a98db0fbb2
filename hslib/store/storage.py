"""Opens a store's storage by its URL: a directory, or a prefix in a bucket."""

import os
from pathlib import Path

from hslib.errors import StoreError
from hslib.store.contract import Storage
from hslib.store.directory import Directory
from hslib.store.url import StoreUrl, read_store_url


def open_storage(url: str | Path) -> Storage:
    """The storage at a URL; raises :class:`ParameterError` for one that can't be a store's."""
    url = read_store_url(url)
    if isinstance(url, Path):
        return Directory(url)
    from hslib.store.bucket.storage import ObjectStore

    return ObjectStore(url)


def probe_write(url: StoreUrl) -> None:
    """Write, read and delete a small object in a bucket; of a directory see whether it may be made.

    Raises:
        StoreError: it can't be written, or the object store can't be reached.
    """
    if isinstance(url, str):
        from hslib.store.bucket.objects import Objects

        Objects(url).probe_write()
    else:
        _probe_directory(url)


def _probe_directory(path: Path) -> None:
    """Of a directory that is not there, what it would be made in; writes nothing."""
    nearest = next(part for part in (path, *path.parents) if part.exists())
    if not nearest.is_dir():
        raise StoreError(f"{nearest} is a file", path=str(path), fix="choose another store_dir")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StoreError(
            f"{nearest} can't be written", path=str(path), fix="choose another store_dir"
        )
