"""The fixture `lab` (lab.py) for this folder's tests."""
from lab import lab  # noqa: F401
