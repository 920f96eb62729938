local t = require("umavez.testing")

describe("maintenance.purge", function()
  it("removes what has outlived its retention", function()
    t:run("webhooks.receive", { delivery = "d-1", payload = {} })
    t:travel("6d")
    assert.equal(0, t:run("maintenance.purge").platform_keys)
    t:travel("25h")
    assert.equal(2, t:run("maintenance.purge").platform_keys) -- the delivery's, and the first purge's own
  end)
end)
