"""Opens a store's storage by its URL: a directory, or a prefix in a bucket."""

from pathlib import Path

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
    """Write, read and delete a small object in a bucket; does nothing for a directory.

    Raises:
        StoreError: the object store refuses, or can't be reached.
    """
    if isinstance(url, str):
        from hslib.store.bucket.objects import Objects

        Objects(url).probe_write()
