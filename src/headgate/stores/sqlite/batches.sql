-- name: batch_counts
select state, count(*) from jobs where tenant = :tenant and batch_id = :batch_id group by state

-- name: batch_jobs
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, null, result, error, error_class, reason, null,
       created_at, run_at, expires_at, started_at, finished_at, batch_id, webhook
from jobs where tenant = :tenant and batch_id = :batch_id and id > coalesce(:after, '') order by id limit :limit

-- name: cancel_pending_of_batch
update jobs set state = 'cancelled', finished_at = :now, reason = 'cancelled',
    history = coalesce(history, '') || :entry
where seq in (select seq from jobs where tenant = :tenant and batch_id = :batch_id
                and state in ('scheduled', 'ready', 'suspect')
              order by id limit :limit)

-- name: cancel_running_of_batch
update jobs set cancel_at = :now
where seq in (select seq from jobs where tenant = :tenant and batch_id = :batch_id
                and state = 'running' and cancel_at is null
              order by id limit :limit)
