std = "luajit"
max_line_length = 120
files["tests/spec"] = { std = "+busted" }
files["tasks/**/*_spec.lua"] = { std = "+busted" }
files["lua/umavez/vm.lua"] = { ignore = { "122" } } -- coroutine.resume and wrap are replaced
files["lua/umavez/testing.lua"] = { self = false } -- t:run(…) for all of them, with or without a state of its own
files["tasks/**/manifest.lua"] = { std = "luajit" }
