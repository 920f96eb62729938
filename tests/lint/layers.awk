# A file includes its own layer and the ones before it, never one after; third-party headers only where style says.
BEGIN {
  n = split("base io host core bind proc", name, " ")
  for (i = 1; i <= n; i++) rank[name[i]] = i
  # Lua belongs to host and bind; core is testable without it and without a server.
  allowed["lua"] = " host bind "; allowed["ev"] = " io "; allowed["pq"] = " io "; allowed["hiredis"] = " io "
  allowed["ssl"] = " base "
}
{ split(FILENAME, path, "/"); layer = path[2] }
/^#include "/ {
  split($2, inc, /["\/]/)
  if (!(inc[2] in rank)) { print FILENAME ":" FNR ": include of no layer: " $2; next }
  if (rank[inc[2]] > rank[layer] || (layer == "core" && inc[2] == "host"))
    print FILENAME ":" FNR ": " layer " must not include " inc[2] ": " $2
}
/^#include </ {
  lib = ""
  if ($2 ~ /<(lua|lauxlib|lualib|luajit)/) lib = "lua"
  if ($2 ~ /<ev\.h>/) lib = "ev"
  if ($2 ~ /<(libpq|postgres|pg_)/) lib = "pq"
  if ($2 ~ /<hiredis/) lib = "hiredis"
  if ($2 ~ /<openssl/) lib = "ssl"
  if (lib && index(allowed[lib], " " layer " ") == 0 && !(lib == "lua" && layer == "proc"))
    print FILENAME ":" FNR ": " $2 " does not belong into " layer
}
