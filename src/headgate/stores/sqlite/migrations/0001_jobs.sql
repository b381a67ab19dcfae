-- Jobs, live and finished, in one table: the indexes are partial, so that neither burdens the other.
-- A job that waits has neither an owner nor an end, one that is over has an end. Conditions say it so because SQLite puts
-- up a list (`state in (…)`) anew for every write: with lists, taking a job in would cost twice as much.
create table jobs (
    seq integer primary key,
    id text not null unique,
    tenant text not null,
    task text not null,
    model text not null,                    -- '' for none
    state text not null check (
        state = 'ready' or state = 'running' or state = 'completed' or state = 'scheduled' or state = 'suspect'
        or state = 'skipped' or state = 'dead_letter' or state = 'cancelled'),
    lane text not null check (lane in ('interactive', 'batch')),
    priority integer not null,
    attempts integer not null default 0,
    max_attempts integer not null,
    generation integer not null default 1,
    crashes integer not null default 0,
    deferrals integer not null default 0,
    revivals integer not null default 0,
    lease integer not null default 0,       -- raised by every claim, never reset
    owner text,                             -- the node that runs it
    hold integer not null,
    revivable integer not null,
    timeout_s real not null,
    created_at real not null,
    run_at real not null,
    due real not null,                      -- its place in line
    expires_at real not null,
    started_at real,
    finished_at real,
    cancel_at real,                         -- when somebody asked to stop it
    revive_at real,                         -- when an exhausted one may come back
    dedup_key text,
    reason text,
    error text,
    error_class text,
    history text,                           -- one JSON line per entry
    progress blob,
    metadata blob,
    result text                             -- last, so that nobody reads past it
) strict;
create index jobs_ready on jobs (model, tenant, due) where state = 'ready';
create index jobs_suspect on jobs (due) where state = 'suspect';
create index jobs_scheduled on jobs (run_at) where state = 'scheduled';
create index jobs_running on jobs (owner) where state = 'running';
create index jobs_expiring on jobs (expires_at) where owner is null and finished_at is null;
create index jobs_finished on jobs (finished_at) where finished_at is not null;
create index jobs_rare on jobs (state, id) where finished_at is not null and state <> 'completed';
create index jobs_reviving on jobs (revive_at) where state = 'dead_letter' and revive_at is not null;
create unique index jobs_dedup on jobs (tenant, task, dedup_key)
    where dedup_key is not null and finished_at is null;

-- Apart, because SQLite rewrites a whole row whenever any of it changes, and inputs are large.
create table inputs (seq integer primary key, input blob not null) strict;

create table steps (
    job_id text not null,
    name text not null,
    result blob not null,
    saved_at real not null,
    primary key (job_id, name)
) strict, without rowid;

create table nodes (
    id text primary key,
    expires_at real not null
) strict, without rowid;

create table idempotency_keys (
    tenant text not null,
    endpoint text not null,
    key text not null,
    request_hash blob not null,
    state text not null check (state = 'reserved' or state = 'sent' or state = 'done'),
    lease integer not null,
    owner text,
    job_id text,
    response_status integer,
    response_body blob,
    created_at real not null,
    expires_at real not null,
    primary key (tenant, endpoint, key)
) strict, without rowid;
create index idempotency_keys_expires on idempotency_keys (expires_at);

create table records (
    tenant text not null,
    collection text not null,
    id text not null,
    body blob not null,
    unique_key text,
    text text,
    folded text,                            -- the text without its case, for searching
    job_id text,
    created_at real not null,
    updated_at real not null,
    primary key (tenant, collection, id)
) strict;
create unique index records_unique on records (tenant, collection, unique_key) where unique_key is not null;

create table secrets (name text primary key, value blob not null) strict;
insert into secrets values ('fingerprint', randomblob(32));
