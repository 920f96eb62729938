--- The OpenAPI 3.1 description of the tasks' doors, from their manifests.
-- @module umavez.openapi

local json = require("umavez.json")
local version = require("umavez.version")

local M = {}

local PROBLEM = { ["$ref"] = "#/components/schemas/Problem" }

local function problem(description)
  return { description = description, content = { ["application/problem+json"] = { schema = PROBLEM } } }
end

-- What a door can answer besides the task's own answers; docs/http.md says when.
local REFUSALS = {
  ["400"] = "The request cannot be read, or its Idempotency-Key is missing or has not the right form",
  ["401"] = "No valid token or signature",
  ["403"] = "The token does not allow this",
  ["409"] = "A request with this Idempotency-Key is still at work; see Retry-After",
  ["413"] = "The body is too large",
  ["415"] = "The body is no JSON",
  ["422"] = "The task refused (urn:umavez:failure:…), or the Idempotency-Key was used with another request",
  ["500"] = "The request failed; the same Idempotency-Key may be sent again",
  ["503"] = "PostgreSQL is away, the server is overloaded or shuts down; see Retry-After",
}

local function responses(http)
  local out = {}
  for status, description in pairs(REFUSALS) do
    out[status] = problem(description)
  end
  if http.mode == "enqueue" then
    out["202"] = { description = "The run is in the queue", headers = { Location = { schema = { type = "string" } } },
      content = { ["application/json"] = { schema = { type = "object" } } } }
  else
    out["2XX"] = { description = "The task's answer; X-Idempotent-Replay tells a replay",
      headers = { ["X-Idempotent-Replay"] = { schema = { type = "string", const = "true" } } },
      content = { ["application/json"] = { schema = true } } }
  end
  return out
end

local function parameters(http)
  local out = json.array {}
  for name in http.path:gmatch("{([%w_]+)}") do
    out[#out + 1] = { name = name, ["in"] = "path", required = true, schema = { type = "string", minLength = 1 } }
  end
  if http.method ~= "GET" then
    local by_header = type(http.key) == "table"
    out[#out + 1] = {
      name = by_header and http.key.header or "Idempotency-Key", ["in"] = "header",
      required = http.key ~= "optional",
      schema = { type = "string", minLength = 1, maxLength = 255, format = http.key_form == "uuid" and "uuid" or nil },
    }
  end
  if http.signature then
    out[#out + 1] = { name = http.signature.header, ["in"] = "header", required = true, schema = { type = "string" } }
  end
  return out
end

local function operation(task)
  local http = task.http
  local op = {
    operationId = task.name,
    summary = task.description,
    parameters = parameters(http),
    responses = responses(http),
    security = http.auth == "token" and not http.signature and json.array { { bearer = json.array {} } }
      or json.array {},
  }
  if http.method ~= "GET" then
    op.requestBody = { required = http.method ~= "DELETE",
      content = { ["application/json"] = { schema = { type = "object" } } } }
  end
  return op
end

--- The description.
-- @tparam table found what `umavez.manifest.load` gave
-- @treturn table encode it with `umavez.json`
function M.describe(found)
  local paths = {}
  for _, task in pairs(found) do
    if task.http then
      paths[task.http.path] = paths[task.http.path] or {}
      paths[task.http.path][task.http.method:lower()] = operation(task)
    end
  end
  return {
    openapi = "3.1.0",
    info = { title = "umavez", version = version, description = "Doors of umavez's tasks." },
    paths = paths,
    components = {
      securitySchemes = { bearer = { type = "http", scheme = "bearer" } },
      schemas = {
        Problem = {
          type = "object", required = json.array { "type", "title", "status" },
          properties = { type = { type = "string" }, title = { type = "string" }, status = { type = "integer" },
            detail = { type = "string" }, run_id = { type = "string", format = "uuid" } },
        },
      },
    },
  }
end

return M
