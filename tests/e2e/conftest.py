"""The fixtures `lab` and `own_lab` (lab.py) for this folder's tests.

Many of them count the starts of handlers, and a run that shares a transaction may be started again because of another one. So their
tasks share nothing, but where a test is about that (test_batch.py), or where all of them shall share (UMAVEZ_TEST_SHARE=8 tests/run e2e:
then those counts are off).
"""
import os

from lab import lab, own_lab  # noqa: F401

if "UMAVEZ_TEST_SHARE" not in os.environ:
    os.environ["UMAVEZ_TEST_BATCH"] = "1"
