"""The lock that keeps two jobs apart; where jobs meet it is tested with the jobs."""

from pathlib import Path

import pytest

from hslib.errors import JobError
from hslib.files import Lock


def test_a_lock_that_is_not_held_says_so(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock", "it")
    with pytest.raises(JobError, match="is not held"):
        lock.require_held()
    with lock:
        lock.require_held()
