"""Conversations to rows: with the model's own tokenizer and template, and a mask of the answers."""

from hslib.rows.chat import Chat, load_chat
from hslib.rows.chunk import Counts
from hslib.rows.conversation import Conversation, Message, read_conversation
from hslib.rows.making import RowsManifest, make_file, read_manifest
from hslib.rows.recipe import Recipe
from hslib.rows.row import Row, make_rows
from hslib.rows.view import (
    facts,
    first_rows,
    is_good,
    length_table,
    rejection_table,
    require_good,
    row_html,
    row_text,
    sentences,
)

__all__ = [
    "Chat",
    "Conversation",
    "Counts",
    "facts",
    "first_rows",
    "is_good",
    "length_table",
    "load_chat",
    "make_file",
    "make_rows",
    "Message",
    "read_conversation",
    "read_manifest",
    "Recipe",
    "rejection_table",
    "require_good",
    "Row",
    "row_html",
    "row_text",
    "RowsManifest",
    "sentences",
]
