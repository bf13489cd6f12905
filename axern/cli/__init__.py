"""The command line: grammar here, what the commands do in `actions`; only this package prints."""
