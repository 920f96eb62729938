rockspec_format = "3.0"
package = "umavez"
version = "scm-1"
source = { url = "git+file://." } -- `luarocks make`, in the tree
description = {
  summary = "A job worker for tasks in Lua whose effects happen once",
  detailed = "The queue delivers at least once; a ledger in PostgreSQL makes each effect happen once. "
    .. "This rock carries the Lua library, and the program where its libraries are (docs/install.md).",
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua == 5.1", "argparse >= 0.7" }
build = {
  type = "make",
  build_target = "rock",
  install_target = "install-rock",
  install_variables = { PREFIX = "$(PREFIX)", LUADIR = "$(LUADIR)", BINDIR = "$(BINDIR)" },
}
test = { type = "command", command = "tests/run" }
