-- name: lost
-- Running jobs whose node is dead or has left.
select jobs.id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation,
       crashes, deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
       metadata, batch_id, access_key, iif(gone = 'silent', max(silences, 1), 0), alone and gone is not null
from jobs join inputs using (seq) left join nodes on nodes.id = owner
where state = 'running' and (nodes.id is null or gone is not null) limit ?

-- name: forget_nodes
delete from nodes
where gone is not null and not exists (select 1 from jobs where state = 'running' and owner = nodes.id)

-- name: uncancelled
select id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation,
       crashes, deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
       metadata, batch_id, access_key
from jobs join inputs using (seq) where state = 'running' and cancel_at < :before limit :limit

-- name: expire
update jobs set state = 'dead_letter', reason = 'expired', finished_at = :now,
    error = coalesce(error, 'it was not done before it expired'),
    error_class = coalesce(error_class, 'expired'), history = coalesce(history, '') || :entry
where seq in (select seq from jobs where owner is null and finished_at is null and expires_at <= :now
              order by expires_at limit :limit)
returning id, task, tenant, model, error, error_class, attempts, generation, revivals, webhook, metadata,
          batch_id

-- name: revivable
select id, model from jobs where state = 'dead_letter' and revive_at is not null and revive_at <= ?
order by revive_at limit ?

-- name: revive_job
update or ignore jobs set
    state = case when crashes >= 2 then 'suspect' else 'ready' end, attempts = 0, silences = 0, revivals = revivals + 1, run_at = :now,
    due = :now + priority * 60.0 - (lane = 'interactive') * 600.0, expires_at = :expires_at,
    finished_at = null, revive_at = null, reason = null, history = coalesce(history, '') || :entry
where id = :id and state = 'dead_letter' and revive_at is not null

-- name: cool_again
-- Another job does its work just now, or its model takes no calls: look again later.
update jobs set revive_at = :later where id = :id and state = 'dead_letter' and revive_at is not null

-- name: prune_jobs
delete from jobs
where seq in (select seq from jobs where finished_at < :before order by finished_at limit :limit)
returning seq, id

-- name: drop_input
delete from inputs where seq = ?

-- name: prune_files
delete from records where rowid in
    (select rowid from records where collection = 'files' and id < :before order by id limit :limit)

-- name: purge_keys
delete from idempotency_keys where (tenant, endpoint, key) in
    (select tenant, endpoint, key from idempotency_keys where expires_at <= :now order by expires_at limit :limit)
