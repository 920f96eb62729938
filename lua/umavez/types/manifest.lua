---@meta _
-- Made by tests/lint/types.lua; do not edit.

---@class umavez.Arg
---@field type "string"|"integer"|"number"|"boolean"|"object"|"array"|"any" what the value is. JSON's null is only of the type any
---@field required? boolean true: it must be there
---@field min? number the least value; of a string the characters, of an array the items
---@field max? number the greatest, likewise
---@field pattern? string what a string must match somewhere (`^…$`: as a whole); without `%b`, `%f`, `%1`, `()`. Strings longer than 1000 octets do not match, unless `max` allows more
---@field enum? any[] the values that there are
---@field items? umavez.Arg what each item is
---@field fields? table<string, umavez.Arg> what its members are, by name; others may be there
---@field description? string for people

---@class umavez.Task.Retry
---@field max_attempts? number starts of the handler before the run counts as failed for good. Default: 8
---@field max_crashes? number how often its code may cost the worker its life (a crash, an endless loop) before the run counts as failed for good; never more than max_attempts. Default: 3
---@field base? string wait before the second try; doubles each time, with jitter. Default: 1s
---@field cap? string the longest wait. Default: 10m

---@class umavez.Task.Http.Signature
---@field scheme? "hmac_sha256" HMAC-SHA-256 over the body, in hex. Default: hmac_sha256
---@field header string where it stands
---@field prefix? string what stands before it, such as "sha256="
---@field secret_env string the environment variable that holds the secret

---@class umavez.Task.Http
---@field method? "POST"|"PUT"|"PATCH"|"DELETE"|"GET" the request's method. Default: POST
---@field path string the request's path; what stands in braces reaches args
---@field key? "required"|"optional"|{ header: string } whether an Idempotency-Key must be sent; or the sender's own header that names the operation. Default: required
---@field key_form? "any"|"uuid" what a key may look like: 1 to 255 printable ASCII characters, or a UUID. Default: any
---@field mode? "run"|"enqueue" answer with the outcome, or with 202 after the run was put into the queue. Default: run
---@field wait? string how long a duplicate waits for the first one's answer before 409. Default: 10s
---@field auth? "token"|"none" who may send: holders of a token, or anybody (with `signature`: the signer). Default: token
---@field scope? string what the token must allow. Default: the task's name
---@field signature? umavez.Task.Http.Signature the body's signature, instead of a token
---@field max_body? number octets of a body. Default: the setting http_max_body_bytes

---@class umavez.Task.Schedule
---@field cron? string minute, hour, day of month, month, day of week, such as `"*/15 * * * *"`; or `"@daily"`. This or `every`; see docs/schedules.md
---@field every? string instead of `cron`: at all multiples of this duration since 1970-01-01 00:00 UTC, such as `"1h"`
---@field tz? string the time zone of `cron`. Default: UTC
---@field missed? "skip"|"once"|"all" what happens to slots that passed while no worker was there: none, the latest only, or each is enqueued. Default: once
---@field tenants? "each" required for tenants' tasks, and only there: each slot is one run for every row of the tenants table
---@field args? any the runs' args. Default: none
---@field slot_arg? string the name of an argument that gets the slot's time in UTC, `2026-12-01T12:00:00Z`. Default: none

---@class umavez.Task
---@field owner "tenant"|"platform" whose runs these are: a tenant's (enqueued with a tenant) or nobody's (work above tenants)
---@field key? string[]|fun(args: table): string? what makes two runs the same operation: paths into args, or a function of args that returns a string. Default: the run_id, so only redeliveries are duplicates
---@field fingerprint? string[] the paths into args that must be equal for two runs with one key. Default: all args
---@field lease? string how long a worker that says nothing keeps a run; renewed while it lives. Default: 30s
---@field timeout? string how long one start of the handler may take; prepare and effect each. Default: 20s
---@field retention? string how long an outcome is kept and answered to duplicates; afterwards the key counts as new. Default: 24h
---@field retry? umavez.Task.Retry what happens after an error
---@field queue? string the queue its runs go to, unless enqueue says otherwise. Default: default
---@field concurrency? number runs of this task at once in one worker. Default: as many as there are connections
---@field global_limit? number runs of this task at once in all workers together. Default: no limit
---@field batch? number runs that may share one transaction when many wait, each under a savepoint of its own; 1: none. Default: 50
---@field history? boolean false: a completed run leaves no row in umavez.finished_runs. Default: true
---@field handler? string the handler's file, from the manifest's folder. Default: the task's name and .lua
---@field description? string for people
---@field http? umavez.Task.Http makes the task reachable over HTTP
---@field schedule? umavez.Task.Schedule enqueues runs by the clock
---@field args? table<string, umavez.Arg> what the args must be, by name. Default: any object

---@class umavez.Queue
---@field global_limit? number runs of this queue at once in all workers together. Default: no limit
---@field fair? boolean true: its tenants are served in turn, however many runs one of them has queued. Default: false

---@class umavez.Manifest
---@field tasks table<string, umavez.Task> by name
---@field queues? table<string, umavez.Queue> by name
