"""The benchmark: umavez beside the floor of pgbench, in one run on private servers. `tests/bench/run --help`."""
