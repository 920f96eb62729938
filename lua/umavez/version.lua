--- The version of umavez.
-- @module umavez.version
return "0.1.0"
