-- name: batch_counts
select state, count(*) from headgate.jobs where tenant = $1 and batch_id = $2 group by state
union all
select state, count(*) from headgate.finished_jobs where tenant = $1 and batch_id = $2 group by state

-- name: batch_jobs
select * from (
    (select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
            revivals, dedup_key, hold, timeout_s, metadata, progress, null::bytea, null::bytea, error, error_class,
            null::text, null::text, created_at, run_at, expires_at, started_at, null::float8, batch_id, webhook
     from headgate.jobs where tenant = $1 and batch_id = $2 and id > coalesce($3::text, '') order by id limit $4)
    union all
    (select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
            revivals, dedup_key, hold, timeout_s, metadata, progress, null::bytea, result, error, error_class,
            reason, null::text, created_at, run_at, expires_at, started_at, finished_at, batch_id, webhook
     from headgate.finished_jobs where tenant = $1 and batch_id = $2 and id > coalesce($3::text, '')
     order by id limit $4)
) as page order by id limit $4

-- name: cancel_pending_of_batch
with gone as (
    delete from headgate.jobs
    where id = any(array(select id from headgate.jobs
                         where tenant = $1 and batch_id = $2 and state in ('scheduled', 'ready', 'suspect')
                         order by id limit $3 for update {patience}))
      and state <> 'running'
    returning *
)
insert into headgate.finished_jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, expires_at,
                                    finished_at, reason, error, error_class, history)
select {kept}, 'cancelled', attempts, crashes, deferrals, revivals, run_at, expires_at,
       $4::float8, 'cancelled', error, error_class, coalesce(history, '') || $5
from gone
returning id

-- name: cancel_running_of_batch
update headgate.jobs set cancel_at = $4
where id = any(array(select id from headgate.jobs
                     where tenant = $1 and batch_id = $2 and owner is not null and cancel_at is null
                     order by id limit $3 for update {patience}))
  and state = 'running'
returning id
