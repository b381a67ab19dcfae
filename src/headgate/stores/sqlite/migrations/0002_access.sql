-- Keys for callers over HTTP. Of a key itself only its digest is kept.
create table access_keys (
    id text primary key,
    name text not null,
    tenant text not null,
    role text not null check (role in ('call', 'read', 'operate')),
    models text not null,                   -- a JSON list of patterns
    lane text not null check (lane in ('interactive', 'batch')),
    requests_per_minute integer,
    tokens_per_minute integer,
    parallel integer,
    last_four text not null,
    digest blob not null unique,
    created_at real not null,
    expires_at real,
    revoked_at real
) strict;
