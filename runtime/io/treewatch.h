/* treewatch: tells when a Lua file below a folder has changed, moved or gone. For development (worker --watch).
 *
 * What it is    inotify on the folder and every folder below it, new ones too. Changes that come together are told once, when
 *               nothing has happened for a moment. Hidden folders, links to folders, and specs (…_spec.lua) are left out.
 * Owns          the inotify descriptor and its timer; borrows the loop. Keeps a copy of the path.
 * Life cycle    treewatch_new → changed(arg)… → treewatch_free.
 * Callers       the supervisor. changed is called from the loop, and may free the treewatch. */
#ifndef UMAVEZ_IO_TREEWATCH_H
#define UMAVEZ_IO_TREEWATCH_H

#include "base/err.h"
#include "io/loop.h"

struct treewatch;

/* NULL: inotify refuses, or there is no such folder. Borrows path. */
struct treewatch *treewatch_new(struct loop *loop, const char *path, void (*changed)(void *arg), void *arg,
                                struct err *e) MUST_CHECK;
void treewatch_free(struct treewatch *w); /* NULL: nothing */

#endif
