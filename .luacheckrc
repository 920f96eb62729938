std = "luajit"
max_line_length = 120
files["tests/spec"] = { std = "+busted" }
files["lua/umavez/vm.lua"] = { ignore = { "122" } } -- coroutine.resume and wrap are replaced
files["tasks/**/manifest.lua"] = { std = "luajit" }
