"""Request ids: which are dumped, under which name; and where a chunk of rows belongs.

Pure functions; nothing here touches a file, torch or SGLang.
"""

import re
from typing import NamedTuple

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
CANARY_INDEX = 999_999_999  # the index in the ids of the kit's canary requests
_KIT = re.compile(r"(?P<sample>hs-\d+-(?P<tokens>\d+)-[0-9a-f]{16})-\d+")


class Name(NamedTuple):
    """A request id that is fit to be a directory's name."""

    rid: str
    sample: str  # the id without its attempt; "" for ids that are not the kit's
    claimed_tokens: int | None  # how many tokens the id says the request has

    @property
    def is_canary(self) -> bool:
        """Whether this is a canary request, every token of which is witnessed."""
        return self.sample.startswith(f"hs-{CANARY_INDEX}-")


def parse_rid(rid: object) -> Name | None:
    """Read a request id; None for one that must never become a path.

    Plain means ``[A-Za-z0-9._-]``, no leading dot, at most 200 characters.
    """
    if not isinstance(rid, str) or not _PLAIN.fullmatch(rid):
        return None
    match = _KIT.fullmatch(rid)
    if match is None:
        return Name(rid, "", None)
    return Name(rid, match["sample"], int(match["tokens"]))


class Placement(NamedTuple):
    """What to do with a chunk of rows."""

    action: str  # "append", "restart", "ignore" or "fail"
    reason: str = ""


def place_chunk(next_row: int | None, total: int, start: int, count: int) -> Placement:
    """Decide where rows ``start .. start+count`` of a request with ``total`` tokens go.

    ``next_row`` is the first row still missing, None when no dump is under way.
    A prefill seen from its first row again (after a retraction) starts over; rows that
    never passed (a prefix-cache hit, a dropped chunk) make the dump fail.
    """
    if start >= total:
        return Placement("ignore")
    if start + count > total:
        return Placement(
            "fail", f"rows {start}..{start + count} arrived, the request has {total} tokens"
        )
    if start == 0:
        return Placement("append" if next_row is None else "restart")
    if next_row == start:
        return Placement("append")
    seen = next_row or 0
    return Placement(
        "fail",
        f"rows {seen}..{start} never passed the model: a prefix-cache hit or a lost chunk. "
        "Start the server with --disable-radix-cache.",
    )
