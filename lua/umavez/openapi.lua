--- The OpenAPI 3.1 description of the tasks' doors, from their manifests.
-- @module umavez.openapi

local args = require("umavez.args")
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
  ["404"] = "The path's parameters cannot be read, or there is nothing under them",
  ["408"] = "The request took too long to arrive",
  ["409"] = "A request with this Idempotency-Key is still at work; see Retry-After",
  ["413"] = "The body is too large",
  ["414"] = "The target is too long",
  ["415"] = "The body is no JSON",
  ["422"] = "The task refused (urn:umavez:failure:…), or the Idempotency-Key was used with another request",
  ["431"] = "The headers are too large",
  ["500"] = "The request failed; the same Idempotency-Key may be sent again",
  ["503"] = "PostgreSQL is away, the server is overloaded or shuts down; see Retry-After",
}

local function refusals(...)
  local out = {}
  for _, status in ipairs({ ... }) do
    out[status] = problem(REFUSALS[status])
  end
  return out
end

local function responses(http)
  local out = refusals("400", "401", "403", "404", "408", "409", "413", "414", "415", "422", "431", "500", "503")
  out.default = problem("The task refused, with a status of its own choice")
  if http.mode == "enqueue" then
    out["202"] = { description = "The run is in the queue", headers = { Location = { schema = { type = "string" } } },
      content = { ["application/json"] = { schema = { type = "object", required = json.array { "run_id" },
        properties = { run_id = { type = "string", format = "uuid" } } } } } }
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

-- The body: what the manifest says of the args, without those that the path brings.
local function body_schema(task)
  local in_path = {}
  for name in task.http.path:gmatch("{([%w_]+)}") do
    in_path[name] = true
  end
  return task.args and args.schema(task.args, in_path) or { type = "object" }
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
      content = { ["application/json"] = { schema = body_schema(task) } } }
  end
  return op
end

local function plain(text)
  return { description = text, content = { ["text/plain"] = { schema = { type = "string" } } } }
end

-- What each door answers beside its tasks; a task's route never goes before these.
local function built_in()
  local run = refusals("400", "401", "404", "408", "414", "431", "503")
  run["200"] = { description = "The run's state, and its outcome when it has ended",
    content = { ["application/json"] = { schema = { ["$ref"] = "#/components/schemas/Run" } } } }
  local function page(id, summary, ok, others)
    local out = refusals("408", "414", "431")
    out["200"] = ok
    out["503"] = others
    return { get = { operationId = id, summary = summary, parameters = json.array {}, responses = out,
      security = json.array {} } }
  end
  local metrics = refusals("401", "403", "404", "408", "414", "431", "503")
  metrics["200"] = plain("Prometheus text")
  return {
    ["/runs/{run_id}"] = { get = {
      operationId = "umavez.run",
      summary = "what has become of a run of this token's owner",
      parameters = json.array {
        { name = "run_id", ["in"] = "path", required = true, schema = { type = "string", format = "uuid" } },
        { name = "wait", ["in"] = "query", required = false, description = "seconds to wait for its end",
          schema = { type = "integer", minimum = 0, maximum = 60 } },
      },
      responses = run,
      security = json.array { { bearer = json.array {} } },
    } },
    ["/healthz"] = page("umavez.healthz", "is the process alive", plain("It is")),
    ["/readyz"] = page("umavez.readyz", "can work be done now", plain("It can"),
      plain("PostgreSQL is away, or the server shuts down")),
    ["/metrics"] = { get = { operationId = "umavez.metrics",
      summary = "the worker's metrics, unless its settings close the page", parameters = json.array {},
      responses = metrics, security = json.array { {}, { bearer = json.array {} } } } },
    ["/openapi.json"] = page("umavez.openapi", "this description",
      { description = "OpenAPI 3.1", content = { ["application/json"] = { schema = { type = "object" } } } }),
  }
end

--- The description.
-- @tparam table found what `umavez.manifest.load` gave
-- @treturn table encode it with `umavez.json`
function M.describe(found)
  local paths = built_in()
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
        Run = {
          type = "object", required = json.array { "run_id", "task", "state", "deliveries", "enqueued_at" },
          properties = {
            run_id = { type = "string", format = "uuid" },
            task = { type = "string" },
            state = { type = "string",
              enum = json.array { "available", "running", "completed", "failed_permanent" } },
            replay = { type = "boolean" },
            outcome = { type = "object" },
            deliveries = { type = "integer", minimum = 0 },
            enqueued_at = { type = "string", format = "date-time" },
            finished_at = { type = "string", format = "date-time" },
          },
        },
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
