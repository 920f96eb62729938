-- busted's helper script (its --helper): before each test the database is what it was in the beginning.
local busted = require("busted")

busted.before_each(function()
  require("umavez.testing"):reset()
end)
