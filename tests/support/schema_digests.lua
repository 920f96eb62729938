-- umavez exec schema_digests.lua: prints what sql/schema.digests holds, from the database of DATABASE_URL.
local db = require("umavez.pg").connect(os.getenv("DATABASE_URL"))
print(table.concat(require("umavez.doctor.schema").digests(db), "\n"))
