-- name: read_secret
select value from secrets where name = 'fingerprint'

-- name: key_check
select value from secrets where name = 'key_check'

-- name: add_key_check
insert into secrets (name, value) values ('key_check', ?) on conflict (name) do nothing

-- name: webhook_secrets
select sealed, expires_at from webhook_secrets
where owner = ? and (expires_at is null or expires_at > ?) order by number desc

-- name: retire_webhook_secrets
update webhook_secrets set expires_at = min(coalesce(expires_at, :retire_at), :retire_at) where owner = :owner

-- name: forget_webhook_secrets
delete from webhook_secrets where owner = :owner and expires_at <= :now

-- name: add_webhook_secret
insert into webhook_secrets (owner, number, sealed, created_at)
select :owner, coalesce(max(number), 0) + 1, :sealed, :now from webhook_secrets where owner = :owner
having :retire_at is not null or count(*) = 0
