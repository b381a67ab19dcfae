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
update idempotency_keys set state = 'done', response_status = :status, response_body = :body, owner = null
where tenant = :tenant and endpoint = :endpoint and key = :key and lease = :lease and state in ('reserved', 'sent')

-- name: free_key
-- The outcome is not to be told again: the key may run anew.
delete from idempotency_keys
where tenant = ? and endpoint = ? and key = ? and lease = ? and state in ('reserved', 'sent')

-- name: read_secret
select value from secrets where name = 'fingerprint'
