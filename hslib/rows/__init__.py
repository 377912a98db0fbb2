"""Conversations to rows: with the model's own tokenizer and template, and a mask of the answers."""

from hslib.rows.conversation import Conversation, Message, read_conversation

__all__ = ["Conversation", "Message", "read_conversation"]
