"""nbval runs the notebooks with their defaults; what they make goes to a temporary place."""

import os
import shutil
import tempfile

import pytest
from real.warm import of_this_run


def pytest_configure(config: pytest.Config) -> None:
    root = tempfile.mkdtemp(prefix="hslib-nbval-")
    os.environ["HSLIB_RUNS_ROOT"] = root
    config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)  # before the kernel starts
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The server of 02 starts as users' do; those of the notebooks after it in a fifth of the time.

    03 extracts the demo; the others do where 03 has not run.
    """
    if item.path.name[:2] in ("03", "04", "05", "06"):
        os.environ.update(of_this_run().for_kernels())
