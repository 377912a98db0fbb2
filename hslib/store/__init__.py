"""Stores of validated samples, in a directory or a bucket: written, read, verified, repaired."""

from hslib.store.encoding import CODECS, Encoding
from hslib.store.entry import Entry, JournalState, combine
from hslib.store.journal import read_journal
from hslib.store.manifest import Manifest, require_same_kind
from hslib.store.reader import Store, StoredSample, Tokens, find_store
from hslib.store.recode import RecodeReport, recode_store
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
    "CODECS",
    "combine",
    "Encoding",
    "Entry",
    "find_store",
    "JournalState",
    "Manifest",
    "open_storage",
    "probe_write",
    "read_journal",
    "read_store_url",
    "RecodeReport",
    "recode_store",
    "require_same_kind",
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
