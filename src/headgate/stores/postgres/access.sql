-- name: add_access_key
insert into headgate.access_keys (id, name, tenant, role, models, lane, requests_per_minute, tokens_per_minute,
                                  parallel, last_four, digest, created_at, expires_at, revoked_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
on conflict (id) do nothing

-- name: access_keys
select id, name, tenant, role, models, lane, requests_per_minute, tokens_per_minute, parallel, last_four, digest,
       created_at, expires_at, revoked_at
from headgate.access_keys where $1::text is null or tenant = $1 order by created_at desc, id desc

-- name: revoke_access_key
-- Changes the row of one that is revoked already, too: that it is there is the answer.
update headgate.access_keys set revoked_at = coalesce(revoked_at, $2)
where id = $1 and ($3::text is null or tenant = $3) returning id

-- name: access_marker
select count(*), count(revoked_at), max(created_at), max(revoked_at) from headgate.access_keys
