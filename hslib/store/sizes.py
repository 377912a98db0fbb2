"""How many bytes states and samples take. Pure; 1 GB is 1e9 bytes."""

from hslib.files import LARGE, PAGE

STORED_TOKEN_BYTES = 9  # int64 id, uint8 mask
_SMALL_HEADER_BYTES = 600  # below 1 MB: some 400 and the row's own id, rounded up


def state_bytes(num_states: int, hidden_size: int) -> int:
    """Bytes of states that one token takes: layers, and the final one if stored, bfloat16."""
    return num_states * hidden_size * 2


def stored_header_bytes(num_tokens: float, state_bytes_per_token: int) -> int:
    """The header of a stored sample's file: a page of its own where the tensors are large."""
    return PAGE if num_tokens * _per_token(state_bytes_per_token) >= LARGE else _SMALL_HEADER_BYTES


def stored_bytes(num_tokens: float, num_rows: int, state_bytes_per_token: int) -> int:
    """What rows of this many tokens together add to a store, to the rounding of the headers."""
    header = stored_header_bytes(num_tokens / max(num_rows, 1), state_bytes_per_token)
    return int(num_tokens * _per_token(state_bytes_per_token)) + num_rows * header


def _per_token(state_bytes_per_token: int) -> int:
    return state_bytes_per_token + STORED_TOKEN_BYTES


def size_words(size_bytes: float) -> str:
    """A size in the unit that suits it; 1 GB is 1e9 bytes."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:,.3g} {unit}"
    return f"{size_bytes / 1e3:,.3g} kB"
