-- name: find_key
select state, request_hash, lease, owner, expires_at, job_id, response_status, response_body
from idempotency_keys where tenant = ? and endpoint = ? and key = ?

-- name: take_key
-- New, or over one that has expired or whose owner is dead.
insert into idempotency_keys (tenant, endpoint, key, request_hash, state, lease, owner, job_id, created_at, expires_at)
values (:tenant, :endpoint, :key, :request_hash, :state, :lease, :owner, :job_id, :now, :expires_at)
on conflict (tenant, endpoint, key) do update set
    request_hash = excluded.request_hash, state = excluded.state, lease = excluded.lease, owner = excluded.owner,
    job_id = excluded.job_id, response_status = null, response_body = null, created_at = excluded.created_at,
    expires_at = excluded.expires_at

-- name: mark_sent
update idempotency_keys set state = 'sent'
where tenant = ? and endpoint = ? and key = ? and lease = ? and state in ('reserved', 'sent')

-- name: finish_key
-- A lease has one answer: doing it again changes nothing.
update idempotency_keys
set state = 'done', owner = null, response_status = coalesce(response_status, :status),
    response_body = coalesce(response_body, :body)
where tenant = :tenant and endpoint = :endpoint and key = :key and lease = :lease

-- name: free_key
-- The outcome is not to be told again: the key may run anew.
delete from idempotency_keys
where tenant = ? and endpoint = ? and key = ? and lease = ? and state in ('reserved', 'sent')

-- name: held_keys
-- Only a key without an answer has an owner.
select tenant, endpoint, key, request_hash, lease, expires_at from idempotency_keys where owner = ?
