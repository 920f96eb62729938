-- What `umavez test` runs; docs/testing.md explains it.
local t = require("umavez.testing")

local ARGS = { end_to_end_id = "E1", amount_cents = 1000 }
local BOOKED = "SELECT FROM payments WHERE end_to_end_id = $1"

describe("payments.pix", function()
  it("books a payment and enqueues its receipt", function()
    local outcome, run = t:run("payments.pix", ARGS, { tenant = 7 })
    assert.equal("completed", run.status)
    assert.same({ status = 201, payment_id = 1 }, outcome)
    t:assert_enqueued("receipts.send", { payment_id = 1 })
  end)

  it("books a notification once that comes twice", function()
    local first, second = t:deliver_twice("payments.pix", ARGS, { tenant = 7 })
    t:assert_effects_once(BOOKED, "E1")
    assert.same(first, second)
  end)

  for _, point in ipairs { "before_effect", "before_commit", "after_commit" } do
    it("books it once when a worker dies " .. point:gsub("_", " "), function()
      t:crash_at(point)
      t:run("payments.pix", ARGS, { tenant = 7 })
      t:assert_effects_once(BOOKED, "E1")
    end)
  end

  it("refuses an amount above the limit, for good", function()
    local first, second = t:deliver_twice("payments.pix", { end_to_end_id = "E1", amount_cents = 500001 },
      { tenant = 7 })
    assert.equal("limit_exceeded", first.code)
    assert.same(first, second)
    assert.equal(0, #t.db:query(BOOKED, "E1"))
  end)

  it("takes a key anew after its retention", function()
    t:run("payments.pix", ARGS, { tenant = 7 })
    t:travel("6d")
    local _, run = t:run("payments.pix", ARGS, { tenant = 7 })
    assert.is_true(run.replay)
    t:travel("25h")
    _, run = t:run("payments.pix", ARGS, { tenant = 7 })
    assert.is_false(run.replay)
    assert.equal(2, #t.db:query(BOOKED, "E1"))
  end)
end)
