"""Axern admits, launches and buries sandboxes on one host."""

__version__ = "0.1.0"
