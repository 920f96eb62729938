-- A worker that dies: `umavez exec .../crasher.lua POINT`, started by umavez.testing.crash. Its settings come by the
-- environment. At POINT the process kills itself with SIGKILL: nothing is flushed, told or given back.
local manifest = require("umavez.manifest")
local stage = require("umavez.testing.stage")
local sys = require("umavez.sys")

local function die()
  sys.kill(sys.getpid(), "KILL")
end

local POINTS = {
  before_effect = function()
    return die
  end,
  before_commit = function(effect)
    return function(...)
      local outcome = effect(...) -- raises, when it fails: then there is nothing to commit
      die()
      return outcome
    end
  end,
  after_commit = function(effect)
    return effect -- the parent sees the commit, and kills us
  end,
}

local point = ...
local settings = stage.worker_settings({
  conf = { tasks_dir = os.getenv("UMAVEZ_TESTING_TASKS"), tenants_table = os.getenv("UMAVEZ_TESTING_TENANTS") },
  database_url = os.getenv("UMAVEZ_TESTING_DATABASE"),
  log = os.getenv("UMAVEZ_TESTING_LOG"),
}, os.getenv("UMAVEZ_TESTING_QUEUE"))
require("umavez.c.worker").log_to(settings.handle)
local tasks, faults = manifest.load(settings.tasks_dir)
assert(#faults == 0, tostring(faults[1]))
for _, task in pairs(stage.keep_history(tasks)) do
  task.effect = POINTS[point](task.effect)
end
return (require("umavez.worker").run(settings, tasks))
