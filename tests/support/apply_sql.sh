#!/bin/sh
# apply_sql.sh DBURL [TENANTS_TABLE]: applies sql/ to a database with psql, as `umavez migrate` does (for tests; forward only).
# TENANTS_TABLE is a quoted identifier, public.tenants unless given.
set -eu
url=$1
tenants=${2:-public.tenants}
sql=$(cd "$(dirname "$0")/../../sql" && pwd)
run() { psql -Xqb -v ON_ERROR_STOP=1 -v tenants_table="$tenants" -d "$url" "$@"; }

export PGOPTIONS="${PGOPTIONS:-} -c client_min_messages=warning"
run -c 'CREATE SCHEMA IF NOT EXISTS umavez' -c 'CREATE TABLE IF NOT EXISTS umavez.migrations (
  version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())'
last=$(run -At -c 'SELECT coalesce(max(version), 0) FROM umavez.migrations')
for file in "$sql"/[0-9]*.sql; do
  name=$(basename "$file" .sql)
  version=$(expr "${name%%_*}" + 0)
  [ "$version" -gt "$last" ] || continue
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  run -1 -f "$file" -c "INSERT INTO umavez.migrations (version, name, checksum) VALUES ($version, '${name#*_}', '$sum')"
done
set --
for file in "$sql"/functions/*.sql; do set -- "$@" -f "$file"; done
run -1 "$@"
