/* bind_value: the values that Lua has no type for, and the errors that Lua code catches.
 *
 *   umavez.null      JSON null, SQL NULL inside an array: one userdata
 *   umavez.array(t)  marks a table as an array (metatable), so that an empty one stays apart from {}
 *   umavez.decimal   a number that neither a double nor an int64 holds: userdata with its exact text
 *   umavez.json(v)   JSON text for a json or jsonb parameter: userdata
 *   umavez.bytea(s)  octets for a bytea parameter: userdata
 *   int64 cdata      integers beyond 2^53
 *
 * The functions here never raise, unless they say so; idx may be negative. */
#ifndef UMAVEZ_BIND_BIND_VALUE_H
#define UMAVEZ_BIND_BIND_VALUE_H

#include "base/buf.h"
#include "base/err.h"
#include "host/vm.h"

enum bind_kind {
  KIND_NIL,
  KIND_NULL,
  KIND_BOOLEAN,
  KIND_NUMBER,
  KIND_STRING,
  KIND_INT64,
  KIND_UINT64,
  KIND_DECIMAL,
  KIND_JSON,
  KIND_BYTEA,
  KIND_ARRAY, /* a marked table */
  KIND_TABLE,
  KIND_OTHER
};

enum bind_kind bind_kind(lua_State *L, int idx);
const char *bind_kind_name(lua_State *L, int idx); /* for messages */

/* The text inside a DECIMAL, JSON or BYTEA value; borrows, the value keeps it. */
const char *bind_text(lua_State *L, int idx, size_t *len);
/* The octets of an INT64 or UINT64 value. */
int64_t bind_int64(lua_State *L, int idx);

/* These push one value and may raise when memory is out. */
void bind_push_null(lua_State *L);
void bind_push_int64(lua_State *L, int64_t i); /* a number up to 2^53 in magnitude, else int64 cdata */
void bind_push_text(lua_State *L, enum bind_kind kind, const char *p, size_t len);
void bind_mark_array(lua_State *L, int idx);
/* {code, message, sqlstate?, constraint?, detail?, retryable} with a metatable that prints it. */
void bind_push_error(lua_State *L, const struct err *e);
int bind_raise(lua_State *L, const struct err *e);
/* Raises an error object of class ERR_INPUT. */
int bind_refuse(lua_State *L, const char *code, const char *message);

/* The fields of an error object (raw) or the text of any other error value, into *e; class ERR_SQL when it carries an
 * sqlstate. Never raises. */
void bind_error_value(lua_State *L, int idx, struct err *e);

int bind_value_open(lua_State *L); /* module umavez.c.value */

#endif
