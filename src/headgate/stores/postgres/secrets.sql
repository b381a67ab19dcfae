-- name: read_secret
select value from headgate.secrets where name = 'fingerprint'

-- name: key_check
select value from headgate.secrets where name = 'key_check'

-- name: add_key_check
insert into headgate.secrets (name, value) values ('key_check', $1) on conflict (name) do nothing

-- name: webhook_secrets
select sealed, expires_at from headgate.webhook_secrets
where owner = $1 and (expires_at is null or expires_at > $2) order by number desc

-- name: retire_webhook_secrets
update headgate.webhook_secrets set expires_at = least(coalesce(expires_at, $2), $2) where owner = $1

-- name: forget_webhook_secrets
delete from headgate.webhook_secrets where owner = $1 and expires_at <= $2

-- name: add_webhook_secret
insert into headgate.webhook_secrets (owner, number, sealed, created_at)
select $1, coalesce(max(number), 0) + 1, $2, $3 from headgate.webhook_secrets where owner = $1
having $4 or count(*) = 0

-- name: lock_webhook_secrets
-- One owner's secrets change one after the other.
select pg_advisory_xact_lock(hashtextextended($1, 1751474532))
