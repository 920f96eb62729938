#include "proc/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static char *current; /* NULL: standard error as it was inherited */

int logfile_open(const char *path, struct err *e) {
  if (!path[0]) return 0;
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC, 0640);
  if (fd < 0)
    return err_set(e, ERR_INPUT, "bad_option", "log_file: cannot append to %s: %s", path, strerror(errno));
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
