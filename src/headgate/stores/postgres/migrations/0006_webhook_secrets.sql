-- Webhook secrets, encrypted with a key that is not in the database. Null: made from the database's own secret, as earlier
-- versions did; it stays in force until it is rotated.
create table headgate.webhook_secrets (
    owner text collate "C" not null,                -- a tenant; '' for alerts
    number integer not null,
    sealed bytea,
    created_at double precision not null,
    expires_at double precision,
    primary key (owner, number)
);
insert into headgate.webhook_secrets (owner, number, created_at)
select tenant, 1, 0 from (select tenant from headgate.jobs union select tenant from headgate.finished_jobs
                          union select tenant from headgate.access_keys
                          union select tenant from headgate.idempotency_keys
                          union select tenant from headgate.records) as known;
-- Alerts were signed with the secret of the tenant `local`.
insert into headgate.webhook_secrets (owner, number, created_at)
select owner, 1, 0 from unnest(array['', 'local']) as owner where exists (select from headgate.webhook_secrets)
on conflict do nothing;
