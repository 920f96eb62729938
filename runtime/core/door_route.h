/* door_route: which task a request's method and path mean.
 *
 * A route's path is made of segments, literal or {parameter}. A literal goes before a parameter, at the earliest segment where
 * two routes differ. Segments are percent-decoded after the split, so that an encoded slash belongs to the value; a value must be
 * UTF-8 without NUL and not empty. Static after door_routes_new. */
#ifndef UMAVEZ_CORE_DOOR_ROUTE_H
#define UMAVEZ_CORE_DOOR_ROUTE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "core/task.h"

struct door_routes;

/* Collects the http declarations of all registered tasks. NULL with *e (ERR_INPUT "route_conflict") when two tasks have the
 * same method and shape of path. */
struct door_routes *door_routes_new(struct err *e) MUST_CHECK;
void door_routes_free(struct door_routes *rs);

enum door_match { DOOR_MATCH, DOOR_NO_PATH, DOOR_NO_METHOD, DOOR_BAD_PATH };

/* DOOR_MATCH: *task, and params gets the parameters as members of a JSON object without braces: "order_id":"7".
 * DOOR_NO_METHOD: allow gets the methods that the path has, "GET, POST". DOOR_BAD_PATH: an escape or a value is not valid. */
enum door_match door_routes_match(const struct door_routes *rs, const char *method, const char *path,
                                  struct task **task, struct buf *params, struct buf *allow);

#endif
