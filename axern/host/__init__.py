"""The kernel's edge: one module per kernel facility, each applying a value and reading it back."""
