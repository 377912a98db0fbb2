"""How many bytes states and samples take: the only module that computes it. 1 GB is 1e9 bytes."""

from hslib.files import LARGE, PAGE

STORED_TOKEN_BYTES = 9  # int64 id, uint8 mask
_SMALL_HEADER_BYTES = 600  # below 1 MB: about 400 and the row's id, rounded up


def state_bytes(num_states: int, hidden_size: int) -> int:
    """Bytes of states per token, in bfloat16; the final state counts if it is stored."""
    return num_states * hidden_size * 2


def stored_header_bytes(num_tokens: float, state_bytes_per_token: float) -> int:
    """Bytes of a sample's file header: a page where the tensors are large."""
    return PAGE if num_tokens * _per_token(state_bytes_per_token) >= LARGE else _SMALL_HEADER_BYTES


def stored_bytes(num_tokens: float, num_rows: int, state_bytes_per_token: float) -> int:
    """What rows of ``num_tokens`` in all add to a store; headers are rounded up.

    Args:
        state_bytes_per_token: as the samples' encoding keeps them.
    """
    header = stored_header_bytes(num_tokens / max(num_rows, 1), state_bytes_per_token)
    return int(num_tokens * _per_token(state_bytes_per_token)) + num_rows * header


def _per_token(state_bytes_per_token: float) -> float:
    return state_bytes_per_token + STORED_TOKEN_BYTES


def size_words(size_bytes: float) -> str:
    """A size as ``"3.50 TB"``, in the largest unit that it fills; 1 GB is 1e9 bytes."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= scale:
            return f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{_three_digits(size_bytes / 1e3)} kB"


def _three_digits(number: float) -> str:
    return f"{number:#,.3g}".removesuffix(".") if number < 999.5 else f"{number:,.0f}"
