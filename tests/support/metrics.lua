--- The code's table of metrics, a line each: name and type.
for _, m in ipairs(require("umavez.c.stats").metrics()) do
  print(m.name .. " " .. m.type)
end
