-- busted's helper script (its --helper): before each test the database is what it was in the beginning.
local busted = require("busted")

-- `umavez test` fails when nothing was run.
busted.subscribe({ "test", "start" }, function()
  local counts = require("umavez.cli.test").counts
  counts.tests = counts.tests + 1
end)

busted.before_each(function()
  require("umavez.testing"):reset()
end)
