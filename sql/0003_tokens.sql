-- Tokens of the HTTP door. Only the SHA-256 of a token is stored: whoever reads this table cannot send requests.
CREATE TABLE umavez.tokens (
  id         bigint GENERATED ALWAYS AS IDENTITY,
  digest     bytea NOT NULL,
  name       text NOT NULL,
  tenant_id  bigint,                                      -- NULL: the platform's
  scopes     text[] NOT NULL,                             -- names of tasks, or '*'
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz,                                 -- NULL: never
  revoked_at timestamptz,
  CONSTRAINT tokens_pkey PRIMARY KEY (id),
  CONSTRAINT tokens_digest_key UNIQUE (digest),
  CONSTRAINT tokens_digest_check CHECK (octet_length(digest) = 32),
  CONSTRAINT tokens_scopes_check CHECK (cardinality(scopes) > 0),
  CONSTRAINT tokens_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES :tenants_table (id)
);
