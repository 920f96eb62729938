"""The harness of the tests that watch umavez from outside: servers, proxies, workers, an auditor.

It shares no code with the product: digests, gate entries and audits are computed here again.
"""
