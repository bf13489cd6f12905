"""Make `python -m axern` the command line."""

import sys

from axern.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
