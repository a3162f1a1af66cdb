"""The other side of :mod:`bench.load.generator`: target and plan come in as a pickle, the measurement goes out."""

from __future__ import annotations

import pickle
import sys

from bench.load.errors import LoadError
from bench.load.generator import run


def _main() -> int:
    target, plan = pickle.load(sys.stdin.buffer)
    try:
        measurement = run(target, plan)
    except LoadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    pickle.dump(measurement, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
