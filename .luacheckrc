std = "luajit"
max_line_length = 120
exclude_files = { "lua/umavez/types" } -- made by tests/lint/types.lua, for lua-language-server
files["tests/spec"] = { std = "+busted" }
files["tasks/**/*_spec.lua"] = { std = "+busted" }
files["lua/umavez/vm.lua"] = { ignore = { "122" } } -- coroutine.resume and wrap are replaced
files["lua/umavez/testing.lua"] = { self = false } -- t:run(…) for all of them, with or without a state of its own
files["tasks/**/manifest.lua"] = { std = "luajit" }
