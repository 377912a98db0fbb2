"""Opens a store's storage by its URL: a directory, or a prefix in a bucket."""

from pathlib import Path

from hslib.store.contract import Storage
from hslib.store.directory import Directory
from hslib.store.url import StoreUrl, read_store_url


def open_storage(place: str | Path) -> Storage:
    """The storage at a URL; raises :class:`ParameterError` for one that can't be a store's."""
    place = read_store_url(place)
    if isinstance(place, Path):
        return Directory(place)
    from hslib.store.bucket.storage import ObjectStore

    return ObjectStore(place)


def probe_write(place: StoreUrl) -> None:
    """Write, read and delete a small object in a bucket; does nothing for a directory.

    Raises:
        StoreError: the object store refuses, or can't be reached.
    """
    if isinstance(place, str):
        from hslib.store.bucket.objects import Objects

        Objects(place).probe_write()
