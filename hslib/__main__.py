"""``python -m hslib``."""

import sys

from hslib.terminal import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    sys.exit(main())
