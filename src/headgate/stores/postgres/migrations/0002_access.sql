-- Keys for callers over HTTP. Of a key itself only its digest is kept.
create table headgate.access_keys (
    id text collate "C" primary key,
    name text collate "C" not null,
    tenant text collate "C" not null,
    role text collate "C" not null check (role in ('call', 'read', 'operate')),
    models text not null,                           -- a JSON list of patterns
    lane text collate "C" not null check (lane in ('interactive', 'batch')),
    requests_per_minute bigint,
    tokens_per_minute bigint,
    parallel bigint,
    last_four text collate "C" not null,
    digest bytea not null unique,
    created_at double precision not null,
    expires_at double precision,
    revoked_at double precision
);
