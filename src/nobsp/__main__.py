"""`python -m nobsp`: the same as the command `nobsp`."""

import sys

from nobsp.cli import main

if __name__ == "__main__":
    sys.exit(main())
