package = "umavez"
version = "scm-1"
source = { url = "git+file://." }
description = {
  summary = "A job worker for tasks in Lua whose effects happen once",
  detailed = "The queue delivers at least once; a ledger in PostgreSQL makes each effect happen once. "
    .. "The program (LuaJIT, libpq, hiredis and libev inside) is built by make; this rock carries its Lua library.",
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua == 5.1", "argparse >= 0.7" }
build = { type = "make", build_target = "all", install_variables = { PREFIX = "$(PREFIX)" } }
test = { type = "command", command = "tests/run" }
