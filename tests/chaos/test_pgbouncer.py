"""F08 whole: the basic suite through PgBouncer in transaction mode. The tests are those of tests/e2e, taken as they are; the workers' DATABASE_URL leads to
a pooler, on default settings. Not here: what looks at server sessions as if they were the worker's (B01, I10), and what a function leaves in its session
beyond settings and locks (I03: temporary tables, held cursors, LISTEN), which the session's next user finds. Of each test the first two parametrisations; UMAVEZ_LONG=1: all (see conftest.py).
"""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from lab import lab  # noqa: E402, F401
from support.client import Env  # noqa: E402
from support.servers import PgBouncer  # noqa: E402
from test_a_gate import test_A01_64_runs_of_one_key_at_once, test_A05_flush_under_a_running_handler, test_A11_leases_are_renewed  # noqa: E402, F401
from test_b_ledger import (test_B04_error_then_takeover_by_either_run, test_B05_fault_at_commit,  # noqa: E402, F401
                           test_B06_swallowed_error, test_B07_other_isolation_levels, test_B08_deadlock, test_B09_foreign_processing_row,
                           test_B10_failure_against_success, test_B11_replays_leave_the_row_alone)
from test_c_keys import test_C03_owners_do_not_share_keys, test_C06_key_reused, test_C07_handler_tells_them_apart  # noqa: E402, F401
from test_d_outcomes import test_D01_size_of_an_outcome, test_D03_what_json_cannot_hold, test_D05_replay_is_exact  # noqa: E402, F401
from test_e_queue import test_E05_children_of_a_rolled_back_handler, test_E06_large_args, test_E10_operator_retries_a_dead_run  # noqa: E402, F401
from test_g_door import (test_G02_a_replay_has_the_same_octets, test_G04_a_reused_key_is_refused_and_not_answered,  # noqa: E402, F401
                         test_G05_a_duplicate_waits_for_the_answer, test_G08_an_error_is_not_an_answer)
from test_h_purge import test_H02_expired_row_counts_as_absent  # noqa: E402, F401
from test_i_tasks import (test_I01_time_out_of_a_handler_that_waits, test_I03_session_statements_are_refused,  # noqa: E402, F401
                          test_I07_parameters_are_bound_exactly, test_I09_savepoint)
from test_j_operate import test_J01_drain_lets_runs_finish, test_J02_drain_gives_back_what_does_not_end  # noqa: E402, F401


@pytest.fixture
def env(request, pg):
    """As in tests/conftest.py, with a pooler between the workers and PostgreSQL."""
    world = Env(pg)
    world.audit.allow("sessions")      # the pooler keeps its own
    pooler = world.closing(PgBouncer(pg, pool_size=16))
    world.worker_url = world.db.url(host=pooler.socket_dir, port=pooler.port)
    yield world
    report = getattr(request.node, "report_call", None)
    world.close(report is None or report.failed or report.skipped)
