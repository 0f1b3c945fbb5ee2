"""`python -m lurcher` is the command `lurcher`."""

from __future__ import annotations

import sys

from lurcher.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
