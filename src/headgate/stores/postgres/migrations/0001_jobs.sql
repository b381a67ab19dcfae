-- Live jobs and finished ones apart: the line of those who wait stays small, however long the history grows.
-- Texts that are ordered or looked up are compared bytewise, as SQLite does it.
create table headgate.jobs (
    id text collate "C" primary key,
    tenant text collate "C" not null,
    task text collate "C" not null,
    model text collate "C" not null,                -- '' for none
    state text collate "C" not null check (state in ('scheduled', 'ready', 'suspect', 'running')),
    lane text collate "C" not null check (lane in ('interactive', 'batch')),
    priority integer not null,
    attempts integer not null default 0,
    max_attempts integer not null,
    generation integer not null default 1,
    crashes integer not null default 0,
    deferrals integer not null default 0,
    revivals integer not null default 0,
    lease bigint not null default 0,                -- raised by every claim, never reset
    owner text collate "C",                         -- the node that runs it
    claim bigint,                                   -- which of that node's claims took it
    hold boolean not null,
    revivable boolean not null,
    timeout_s double precision not null,
    created_at double precision not null,
    run_at double precision not null,
    due double precision not null,                  -- its place in line
    expires_at double precision not null,
    started_at double precision,
    cancel_at double precision,                     -- when somebody asked to stop it
    dedup_key text collate "C",
    error text,
    error_class text collate "C",
    history text,                                   -- one JSON line per entry
    progress bytea,
    metadata bytea,
    input bytea not null
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_cost_delay = 0
);
create index jobs_ready on headgate.jobs (model, tenant, due, id) where state = 'ready';
create index jobs_suspect on headgate.jobs (due, id) where state = 'suspect';
create index jobs_scheduled on headgate.jobs (run_at) where state = 'scheduled';
create index jobs_owned on headgate.jobs (owner) where owner is not null;
create index jobs_expiring on headgate.jobs (expires_at) where state in ('scheduled', 'ready', 'suspect');
create unique index jobs_dedup on headgate.jobs (tenant, task, dedup_key) where dedup_key is not null;

create table headgate.finished_jobs (
    id text collate "C" primary key,
    tenant text collate "C" not null,
    task text collate "C" not null,
    model text collate "C" not null,
    state text collate "C" not null check (state in ('completed', 'skipped', 'dead_letter', 'cancelled')),
    lane text collate "C" not null,
    priority integer not null,
    attempts integer not null,
    max_attempts integer not null,
    generation integer not null,
    crashes integer not null,
    deferrals integer not null,
    revivals integer not null,
    lease bigint not null,
    hold boolean not null,
    revivable boolean not null,
    timeout_s double precision not null,
    created_at double precision not null,
    run_at double precision not null,
    expires_at double precision not null,
    started_at double precision,
    finished_at double precision not null,
    revive_at double precision,                     -- when an exhausted one may come back
    dedup_key text collate "C",
    reason text collate "C",
    error text,
    error_class text collate "C",
    history text,
    progress bytea,
    metadata bytea,
    input bytea not null,
    result bytea
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
create index finished_jobs_at on headgate.finished_jobs (finished_at);
create index finished_jobs_rare on headgate.finished_jobs (state, id)
    where state in ('skipped', 'dead_letter', 'cancelled');
create index finished_jobs_reviving on headgate.finished_jobs (revive_at)
    where state = 'dead_letter' and revive_at is not null;

create table headgate.steps (
    job_id text collate "C" not null,
    name text collate "C" not null,
    result bytea not null,
    saved_at double precision not null,
    primary key (job_id, name)
);

create table headgate.nodes (
    id text collate "C" primary key,
    expires_at double precision not null
) with (fillfactor = 50);

create table headgate.idempotency_keys (
    tenant text collate "C" not null,
    endpoint text collate "C" not null,
    key text collate "C" not null,
    request_hash bytea not null,
    state text collate "C" not null check (state in ('reserved', 'sent', 'done')),
    lease bigint not null,
    owner text collate "C",
    job_id text collate "C",
    response_status integer,
    response_body bytea,
    created_at double precision not null,
    expires_at double precision not null,
    primary key (tenant, endpoint, key)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);
create index idempotency_keys_expires on headgate.idempotency_keys (expires_at);

create table headgate.records (
    tenant text collate "C" not null,
    collection text collate "C" not null,
    id text collate "C" not null,
    body bytea not null,
    unique_key text collate "C",
    unique_hash bytea,                              -- of the unique key: an address may be too long for an index
    text text,
    folded text,                                    -- the text without its case, for searching
    job_id text collate "C",
    created_at double precision not null,
    updated_at double precision not null,
    primary key (tenant, collection, id)
);
create unique index records_unique on headgate.records (tenant, collection, unique_hash)
    where unique_hash is not null;

create table headgate.secrets (name text primary key, value bytea not null);
insert into headgate.secrets
values ('fingerprint', sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')));
