"""Sandboxes: how one is made from a runtime, watched by a monitor, and proved gone."""
