/* json_members: the members of the objects that are open while a document is walked; for base/json_*.c only.
 *
 * A stack: members of an inner object lie above those of the outer ones. An object remembers the stack's height at its
 * beginning (`first`), sorts what lies above it at its end, and drops it.
 */
#ifndef UMAVEZ_BASE_JSON_MEMBERS_H
#define UMAVEZ_BASE_JSON_MEMBERS_H

#include "base/json.h"

struct json_member {
  const char *key;   /* valid after json_members_sort, until the next push */
  size_t key_offset; /* of the decoded key in json_members.keys */
  size_t key_len;
  size_t order;      /* position in the document, which breaks ties */
  size_t at;         /* the owner's: an offset or a size */
};

struct json_members {
  struct json_member *items;
  size_t n, cap;
  struct buf keys;
};

#define JSON_MEMBERS_INIT {NULL, 0, 0, BUF_INIT}

void json_members_fini(struct json_members *ms);
void json_members_push(struct json_members *ms, const char *key, size_t len, size_t at);

/* Sorts items[first…] by key (UTF-16 code units), then order. True when they stood so before. */
bool json_members_sort(struct json_members *ms, size_t first);
void json_members_drop(struct json_members *ms, size_t first);

bool json_member_same_key(const struct json_member *a, const struct json_member *b);

/* memcmp-like: compares two UTF-8 texts by their UTF-16 code units (RFC 8785 section 3.2.3). */
int json_utf16_compare(const char *a, size_t na, const char *b, size_t nb);

#endif
