"""Where validated samples live: a directory or a bucket, written once, read, verified, repaired."""

from hslib.store.journal import Entry, JournalMark, JournalState, combine, read_journal
from hslib.store.manifest import Manifest
from hslib.store.reader import Store, StoredSample, Tokens
from hslib.store.sizes import (
    STORED_TOKEN_BYTES,
    size_words,
    state_bytes,
    stored_bytes,
    stored_header_bytes,
)
from hslib.store.storage import open_storage, probe_write
from hslib.store.url import StoreUrl, read_store_url
from hslib.store.writer import StoreWriter

__all__ = [
    "combine",
    "Entry",
    "JournalMark",
    "JournalState",
    "Manifest",
    "open_storage",
    "probe_write",
    "read_journal",
    "read_store_url",
    "size_words",
    "state_bytes",
    "Store",
    "stored_bytes",
    "stored_header_bytes",
    "STORED_TOKEN_BYTES",
    "StoredSample",
    "StoreUrl",
    "StoreWriter",
    "Tokens",
]
