#include "proc/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "proc/child.h"

static char *current;     /* NULL: standard error as it was inherited */
static int starter = -1; /* what it was before, until the worker is ready */

int logfile_open(const char *path, struct err *e) {
  if (!path[0]) return 0;
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC, 0640);
  if (fd < 0)
    return err_set(e, ERR_INPUT, "bad_option", "log_file: cannot append to %s: %s", path, strerror(errno));
  if (!current && !child_supervised()) starter = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (dup2(fd, STDERR_FILENO) < 0) bug("dup2 to standard error: %s", strerror(errno));
  close(fd);
  char *copy = xstrdup(path);
  free(current);
  current = copy;
  return 0;
}

void logfile_reopen(void) {
  struct err e = ERR_INIT;

  if (!current)
    log_kv(LOG_INFO_, "log_reopened", "file", "standard error", NULL);
  else if (logfile_open(current, &e) < 0)
    log_err(LOG_ERROR_, "log_not_reopened", &e, NULL);
  else
    log_kv(LOG_INFO_, "log_reopened", "file", current, NULL);
}

void logfile_tell(const char *line) {
  dprintf(starter >= 0 ? starter : STDERR_FILENO, "%s\n", line);
}

void logfile_back(void) {
  if (starter < 0) return;
  if (dup2(starter, STDERR_FILENO) < 0) bug("dup2 to standard error: %s", strerror(errno));
  logfile_settled();
}

void logfile_settled(void) {
  if (starter >= 0) close(starter);
  starter = -1;
}
