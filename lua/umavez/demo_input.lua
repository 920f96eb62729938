--- The demo's input: a file of JSON lines, and what run each line becomes.
--
--   {"tenant_id":1,"pix":[{"endToEndId":…,"valor":"110.00",…}]}    one payments.pix per element
--   {"event":…,"delivery":…,"payload":{…}}                          webhooks.receive
--   any other object                                                webhooks.receive; its key is the line's SHA-256
-- @module umavez.demo_input

local cli = require("umavez.cli")
local json = require("umavez.json")
local sys = require("umavez.sys")

local M = {}

M.TENANTS = 3

local function cents(valor)
  local whole, hundredths = tostring(valor):match("^(%d+)%.(%d%d)$")
  return whole and tonumber(whole) * 100 + tonumber(hundredths) or nil
end

local function pix_messages(out, notification)
  local tenant_id = notification.tenant_id or 1
  for _, pix in ipairs(notification.pix) do
    local amount_cents = cents(pix.valor)
    if type(pix.endToEndId) ~= "string" or not amount_cents then
      return "a pix needs endToEndId and valor like \"110.00\""
    end
    out[#out + 1] = {
      task = "payments.pix", tenant_id = tenant_id, key = ("%d %s"):format(tenant_id, pix.endToEndId),
      args = json.encode { end_to_end_id = pix.endToEndId, amount_cents = amount_cents, txid = pix.txid,
        paid_at = pix.horario, message = pix.infoPagador },
    }
  end
end

local function webhook_message(out, line, value)
  if type(value.event) == "string" and type(value.delivery) == "string" and type(value.payload) == "table" then
    out[#out + 1] = { task = "webhooks.receive", key = value.delivery, args = line }
    return
  end
  local digest = sys.sha256_hex(line)
  out[#out + 1] = { task = "webhooks.receive", key = digest,
    args = ('{"event":"line","delivery":"%s","payload":%s}'):format(digest, line) }
end

--- Read a file.
-- @tparam string path
-- @treturn {table,...} messages: task, tenant_id, key (the business key, for the audit), args (JSON text)
-- @treturn int how many lines
function M.read(path)
  local file, why = io.open(path, "rb")
  if not file then
    cli.fail("failed", "cannot read the demo's input: %s", why)
  end
  local out, number, seen = {}, 0, {}
  for line in file:lines() do
    number = number + 1
    line = line:gsub("^%s+", ""):gsub("%s+$", "")
    if line ~= "" and not seen[line] then
      seen[line] = true
      local ok, value = pcall(json.decode, line)
      if not ok or type(value) ~= "table" or json.is_array(value) then
        cli.fail("failed", "%s:%d: expected a JSON object", path, number)
      end
      local fault
      if type(value.pix) == "table" then
        fault = pix_messages(out, value)
      else
        webhook_message(out, line, value)
      end
      if fault then
        cli.fail("failed", "%s:%d: %s", path, number, fault)
      end
    end
  end
  file:close()
  if #out == 0 then
    cli.fail("failed", "%s holds no messages", path)
  end
  return out, number
end

return M
