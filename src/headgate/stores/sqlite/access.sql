-- name: add_access_key
insert into access_keys (id, name, tenant, role, models, lane, requests_per_minute, tokens_per_minute, parallel,
                         last_four, digest, created_at, expires_at, revoked_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing

-- name: access_keys
select id, name, tenant, role, models, lane, requests_per_minute, tokens_per_minute, parallel, last_four, digest,
       created_at, expires_at, revoked_at
from access_keys where :tenant is null or tenant = :tenant order by created_at desc, id desc

-- name: revoke_access_key
-- Changes the row of one that is revoked already, too: that it is there is the answer.
update access_keys set revoked_at = coalesce(revoked_at, :now)
where id = :id and (:tenant is null or tenant = :tenant)

-- name: access_marker
select count(*), count(revoked_at), max(created_at), max(revoked_at) from access_keys
