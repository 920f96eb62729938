--- A Valkey connection for the command line. Replies are text; the gate's own entries are the runtime's business.
-- @module umavez.valkey

local c = require("umavez.c.valkey")
local vm = require("umavez.vm")

local Connection = {}
Connection.__index = Connection

local M = {}

--- Connect.
-- @tparam table conf the settings (valkey_url, valkey_prefix)
-- @tparam[opt=2000] number timeout_ms
-- @treturn Connection|nil
-- @treturn string|nil why not
-- @raise error object bad_valkey_url
-- @yields
function M.connect(conf, timeout_ms)
  local handle, box = c.open(conf.valkey_url, timeout_ms or 2000, conf.valkey_prefix)
  local up, why = c.up(vm.await(box))
  if not up then
    c.close(handle)
    return nil, why
  end
  return setmetatable({ handle = handle, prefix = conf.valkey_prefix }, Connection)
end

--- Send a command and wait for its reply.
-- @tparam string ... its words
-- @treturn string|nil integers in decimal, the elements of an array a line each
-- @treturn string|nil why there is none: `no answer`, or the server's error
-- @yields
function Connection:command(...)
  return c.reply(vm.await(c.send(self.handle, ...)))
end

--- Remove the gate's entry of a key.
-- @tparam string|nil tenant the owner's id; nil: the platform
-- @tparam string key_hex
-- @treturn boolean|nil whether there was one
-- @treturn string|nil why it could not be removed
-- @yields
function Connection:forget_key(tenant, key_hex)
  local name = ("%s:gate:{%s:%s}"):format(self.prefix, tenant and "t" .. tenant or "p", key_hex)
  local gone, why = self:command("DEL", name)
  if not gone then
    return nil, why
  end
  return gone == "1"
end

--- Close the connection. Closing twice is harmless.
function Connection:close()
  c.close(self.handle)
end

return M
