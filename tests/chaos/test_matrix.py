"""The fault matrix: every step of the runner × every fault, in the queue, in transactions that runs share, and at the door. See matrix.py; `tests/run matrix` runs it.

A cell's name says all that is needed to run it again: `-k "queue and COMMIT_sent and SIGKILL"`.
"""
import json

import pytest

from matrix import ENTRIES, FAULTS, MEANINGLESS, STEPS_OF_THE_RUNNER, cells, why_not
from support.failpoints import failpoints_bin, names
from support.servers import umavez_bin


def parameters(entry):
    return [pytest.param(nr, step, fault, owner, id=f"{step} x {fault}") for nr, (step, fault, owner) in enumerate(cells(entry))]


def one(request, matrix_cell, entry, nr, step, fault, owner):
    cell = {"entry": entry, "nr": nr, "step": step, "fault": fault, "owner": owner}
    property_ = ["cell", json.dumps(cell)]
    request.node.user_properties.append(property_)
    property_[1] = json.dumps({**cell, **matrix_cell(entry, step, fault, owner).run()})


@pytest.mark.parametrize("nr,step,fault,owner", parameters("queue"))
def test_queue(request, matrix_cell, nr, step, fault, owner):
    one(request, matrix_cell, "queue", nr, step, fault, owner)


@pytest.mark.parametrize("nr,step,fault,owner", parameters("batch"))
def test_batch(request, matrix_cell, nr, step, fault, owner):
    one(request, matrix_cell, "batch", nr, step, fault, owner)


@pytest.mark.parametrize("nr,step,fault,owner", parameters("door"))
def test_door(request, matrix_cell, nr, step, fault, owner):
    one(request, matrix_cell, "door", nr, step, fault, owner)


def test_every_cell_is_run_or_explained():
    """No stale row among the reasons, no failpoint without its row in the matrix."""
    for entry, step, fault in MEANINGLESS:
        assert entry in ENTRIES and step in STEPS_OF_THE_RUNNER and fault in (*FAULTS, "*"), (entry, step, fault)
        assert fault == "*" or (entry, step, "*") not in MEANINGLESS, f"explained twice: {entry} {step} {fault}"
    for entry in ENTRIES:
        run = {(step, fault) for step, fault, _ in cells(entry)}
        for step in STEPS_OF_THE_RUNNER:
            for fault in FAULTS:
                assert ((step, fault) in run) != bool(why_not(entry, step, fault))
    assert {failpoint for failpoint, _ in STEPS_OF_THE_RUNNER.values()} == set(names())
    owners = [{(what, owner) for step, fault, owner in cells("queue") + cells("door") for what in (step, fault)}]
    assert all((what, owner) in owners[0] for what in (*STEPS_OF_THE_RUNNER, *FAULTS) for owner in ("tenant", "platform"))


def test_a_release_knows_nothing_of_failpoints():
    assert b"failpoint" not in umavez_bin().read_bytes().lower()
    assert b"failpoint" in failpoints_bin().read_bytes().lower()
