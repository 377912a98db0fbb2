"""nbval runs the notebooks with their defaults; what they make goes to a temporary place."""

import os
import shutil
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    root = tempfile.mkdtemp(prefix="hslib-nbval-")
    os.environ["HSLIB_RUNS_ROOT"] = root
    config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))
