-- Webhook secrets, encrypted with a key that is not in the database. Null: made from the database's own secret, as earlier
-- versions did; it stays in force until it is rotated.
create table webhook_secrets (
    owner text not null,                    -- a tenant; '' for alerts
    number integer not null,
    sealed blob,
    created_at real not null,
    expires_at real,
    primary key (owner, number)
) strict, without rowid;
insert into webhook_secrets (owner, number, created_at)
select tenant, 1, 0.0 from (select tenant from jobs union select tenant from access_keys
                            union select tenant from idempotency_keys union select tenant from records);
-- Alerts were signed with the secret of the tenant `local`.
insert or ignore into webhook_secrets (owner, number, created_at)
select value, 1, 0.0 from json_each('["", "local"]') where exists (select 1 from webhook_secrets);
