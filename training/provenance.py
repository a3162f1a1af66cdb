"""Which code made something."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_commit() -> str:
    """The commit of the training code, ``unknown`` outside a checkout."""
    answer = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"
