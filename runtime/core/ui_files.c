#include "core/ui_files.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"

enum { ETAG_BYTES = 16, MAX_FILE_BYTES = 1 << 20 };

struct ui_files {
  struct ui_file *file;
  size_t n;
};

static const char *type_of(const char *name) {
  static const char *const types[][2] = {
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"},
  };
  const char *dot = strrchr(name, '.');

  for (size_t i = 0; dot && dot != name && i < sizeof types / sizeof *types; i++)
    if (strcmp(dot, types[i][0]) == 0) return types[i][1];
  return NULL;
}

static int read_file(struct ui_files *fs, const char *dir, const char *name, struct err *e) {
  char path[PATH_MAX], chunk[8192];
  uint8_t digest[DIGEST_BYTES];
  struct buf body = BUF_INIT;
  struct ui_file *f;
  size_t n;
  FILE *in;

  if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path || !(in = fopen(path, "re")))
    return err_set(e, ERR_ENV, "ui_files", "the dashboard's file %s/%s cannot be read: %s", dir, name, strerror(errno));
  while ((n = fread(chunk, 1, sizeof chunk, in)) > 0 && body.len <= MAX_FILE_BYTES)
    buf_append(&body, chunk, n);
  fclose(in);
  fs->file = xrealloc(fs->file, (fs->n + 1) * sizeof *fs->file);
  f = &fs->file[fs->n++];
  *f = (struct ui_file){.name = xstrdup(name), .type = type_of(name), .body = body};
  digest_sha256(body.data ? body.data : "", body.len, digest);
  f->etag[0] = '"';
  hex_encode(digest, ETAG_BYTES, f->etag + 1);
  strcat(f->etag, "\"");
  return 0;
}

struct ui_files *ui_files_new(const char *dir, struct err *e) {
  struct ui_files *fs = xcalloc(1, sizeof *fs);
  DIR *d = opendir(dir);
  struct dirent *entry;
  int rc = 0;

  if (!d) rc = err_set(e, ERR_ENV, "ui_files", "the dashboard's folder %s cannot be read: %s", dir, strerror(errno));
  while (rc == 0 && d && (entry = readdir(d)) != NULL)
    if (type_of(entry->d_name)) rc = read_file(fs, dir, entry->d_name, e);
  if (d) closedir(d);
  if (rc == 0 && !ui_files_find(fs, "index.html"))
    rc = err_set(e, ERR_ENV, "ui_files", "the dashboard's folder %s has no index.html: umavez is not installed whole", dir);
  if (rc == 0) return fs;
  ui_files_free(fs);
  return NULL;
}

const struct ui_file *ui_files_find(const struct ui_files *fs, const char *name) {
  for (size_t i = 0; i < fs->n; i++)
    if (strcmp(fs->file[i].name, name) == 0) return &fs->file[i];
  return NULL;
}

void ui_files_free(struct ui_files *fs) {
  if (!fs) return;
  for (size_t i = 0; i < fs->n; i++) {
    free(fs->file[i].name);
    buf_fini(&fs->file[i].body);
  }
  free(fs->file);
  free(fs);
}
