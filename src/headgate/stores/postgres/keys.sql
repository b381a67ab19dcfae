-- name: take_keys
-- New, or over one that has expired. The others are locked all the same, so that nothing changes before we look.
insert into headgate.idempotency_keys (tenant, endpoint, key, request_hash, state, lease, job_id, created_at,
                                       expires_at)
select unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::bytea[]), 'done', unnest($5::bigint[]),
       unnest($6::text[]), unnest($7::float8[]), unnest($8::float8[])
on conflict (tenant, endpoint, key) do update set
    request_hash = excluded.request_hash, state = excluded.state, owner = null,
    lease = greatest(excluded.lease, idempotency_keys.lease + 1), job_id = excluded.job_id, response_status = null,
    response_body = null, created_at = excluded.created_at, expires_at = excluded.expires_at
where idempotency_keys.expires_at <= excluded.created_at
returning tenant, endpoint, key

-- name: find_keys
select known.tenant, known.endpoint, known.key, known.state, known.request_hash, known.lease, known.owner,
       known.expires_at, known.job_id, known.response_status, known.response_body
from (select unnest($1::text[]) as tenant, unnest($2::text[]) as endpoint, unnest($3::text[]) as key) as wanted
join headgate.idempotency_keys as known
  on known.tenant = wanted.tenant and known.endpoint = wanted.endpoint and known.key = wanted.key

-- name: point_keys
-- These keys' work is done by other jobs than the ones they came with.
update headgate.idempotency_keys as known
set job_id = news.job_id, state = 'done', owner = null, response_status = null, response_body = null
from (select unnest($1::text[]) as tenant, unnest($2::text[]) as endpoint, unnest($3::text[]) as key,
             unnest($4::text[]) as job_id) as news
where known.tenant = news.tenant and known.endpoint = news.endpoint and known.key = news.key

-- name: reserve_key
-- New, or over one that has expired; none where the tenant stores $9 bytes or more.
insert into headgate.idempotency_keys (tenant, endpoint, key, request_hash, state, lease, owner, created_at, expires_at)
select $1, $2, $3, $4, 'reserved', $5, $6, $7, $8
where $9::bigint is null
   or coalesce((select sum(bytes) from headgate.stored_bytes as stored where stored.tenant = $1), 0) < $9
on conflict (tenant, endpoint, key) do update set
    request_hash = excluded.request_hash, state = excluded.state, owner = excluded.owner,
    lease = greatest(excluded.lease, idempotency_keys.lease + 1), job_id = null, response_status = null,
    response_body = null, created_at = excluded.created_at, expires_at = excluded.expires_at
where idempotency_keys.expires_at <= excluded.created_at
returning lease

-- name: keep_answer
-- New, or over one that has expired: done with this answer at once.
insert into headgate.idempotency_keys (tenant, endpoint, key, request_hash, state, lease, created_at, expires_at,
                                       response_status, response_body)
values ($1, $2, $3, $4, 'done', $5, $6, $7, $8, $9)
on conflict (tenant, endpoint, key) do update set
    request_hash = excluded.request_hash, state = excluded.state, owner = null,
    lease = greatest(excluded.lease, idempotency_keys.lease + 1), job_id = null,
    response_status = excluded.response_status, response_body = excluded.response_body,
    created_at = excluded.created_at, expires_at = excluded.expires_at
where idempotency_keys.expires_at <= excluded.created_at
returning lease

-- name: find_key
select state, request_hash, lease, owner, expires_at, job_id, response_status, response_body
from headgate.idempotency_keys where tenant = $1 and endpoint = $2 and key = $3

-- name: lock_key
select state, request_hash, lease, owner, expires_at, job_id, response_status, response_body,
       exists (select from headgate.nodes where nodes.id = owner and nodes.gone is null)
from headgate.idempotency_keys where tenant = $1 and endpoint = $2 and key = $3 for update

-- name: retake_key
-- Over one whose owner is dead, or is this node.
update headgate.idempotency_keys
set state = 'reserved', lease = $4, owner = $5, job_id = null, response_status = null, response_body = null,
    created_at = $6, expires_at = $7
where tenant = $1 and endpoint = $2 and key = $3

-- name: mark_sent
update headgate.idempotency_keys set state = 'sent'
where tenant = $1 and endpoint = $2 and key = $3 and lease = $4 and state in ('reserved', 'sent') returning lease

-- name: finish_key
-- A lease has one answer: doing it again changes nothing.
update headgate.idempotency_keys
set state = 'done', owner = null, response_status = coalesce(response_status, $5),
    response_body = coalesce(response_body, $6)
where tenant = $1 and endpoint = $2 and key = $3 and lease = $4 returning lease

-- name: free_key
-- The outcome is not to be told again: the key may run anew.
delete from headgate.idempotency_keys
where tenant = $1 and endpoint = $2 and key = $3 and lease = $4 and state in ('reserved', 'sent') returning lease

-- name: held_keys
-- Only a key without an answer has an owner.
select tenant, endpoint, key, request_hash, lease, expires_at from headgate.idempotency_keys where owner = $1
