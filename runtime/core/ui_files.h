/* ui_files: the dashboard's static files, read once, served from memory.
 *
 * What it is    every file of a folder with an ending that it knows, found by its whole name: what is not in the table is not there, so no
 *               name leads out of the folder.
 * Life cycle    ui_files_new → ui_files_find … → ui_files_free. Static in between: a reload is a new process. */
#ifndef UMAVEZ_CORE_UI_FILES_H
#define UMAVEZ_CORE_UI_FILES_H

#include "base/buf.h"
#include "base/err.h"

struct ui_file {
  char *name;
  const char *type; /* Content-Type */
  char etag[36];    /* with its quotes */
  struct buf body;
};

struct ui_files;

/* NULL with *e: the folder cannot be read, or lacks index.html. */
struct ui_files *ui_files_new(const char *dir, struct err *e) MUST_CHECK;
const struct ui_file *ui_files_find(const struct ui_files *fs, const char *name); /* borrows; NULL: none */
void ui_files_free(struct ui_files *fs);

#endif
