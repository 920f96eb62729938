std = "luajit"
max_line_length = 100
files["tests/spec"] = { std = "+busted" }
files["tasks/**/manifest.lua"] = { std = "luajit" }
