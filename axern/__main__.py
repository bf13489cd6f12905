"""Make `python -m axern` the command line."""

from axern.cli.main import main

if __name__ == "__main__":
    main()
