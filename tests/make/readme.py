"""README's commands as a shell runs them in a fresh checkout."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def block_with(*words: str) -> str:
    """The one bash block of README that has all these words."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (found,) = [block for block in blocks if all(word in block for word in words)]
    return str(found)


def replaced(script: str, values: Mapping[str, object]) -> str:
    """With this host's values in place of the example's; each must occur."""
    for old, new in values.items():
        assert old in script, old
        script = script.replace(old, str(new))
    return script


def checkout(folder: Path) -> Path:
    """What README's commands need of a checkout, and nothing that a run has made."""
    for name in ("hslib", "notebooks", "patches"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def shell(script: str, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run it in bash, in this interpreter's environment; stops at the first command that fails."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **(variables or {}), "PATH": path}
    environment.pop("HSLIB_RUNS_ROOT", None)
    run = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
    return run.stdout
