"""The daemon: admits, launches, watches and buries; the only writer while it runs."""
