/* ledger_acks: acknowledgements of replays: each run of a settled key is verified by the ledger and removed from the queue.
 *
 * What it is    what has been asked for in a tick, or while others are under way, goes as one statement for all runs of a task
 *               (umavez.ack_replays) on the control connection: a single one at once, many in sets. Each run gets an answer of its
 *               own. A set that is refused is sent again run by run, so that nobody pays for another one's trouble.
 * Owns          the runs' places in it (run.member) until their answers come. Borrows loop and control.
 * Life cycle    ledger_acks_new → ledger_ack … → ledger_acks_free, with no run left in it. */
#ifndef UMAVEZ_CORE_LEDGER_ACKS_H
#define UMAVEZ_CORE_LEDGER_ACKS_H

#include "core/control.h"
#include "core/ledger.h"

struct ledger_acks;

struct ledger_acks *ledger_acks_new(struct loop *loop, struct control *control);
void ledger_acks_free(struct ledger_acks *a);
/* done comes once, at the safe point: found (false: the ledger does not hold it, and nothing was changed), failed, outcome, remaining_ms,
 * ledger_id, attempt; got.err with got.lost where the connection is down or lost. */
void ledger_ack(struct ledger_acks *a, struct run *r, ledger_done *done);

#endif
