-- name: insert_job
-- A job on its way in; whether it is ready or scheduled was decided by its time.
insert into jobs (id, tenant, task, model, state, lane, priority, max_attempts, hold, revivable, timeout_s,
                  created_at, run_at, due, expires_at, dedup_key, metadata, batch_id, webhook, access_key)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_input
insert into inputs (seq, input) values (?, ?)

-- name: find_twin
-- The live job that does the same work.
select id from jobs
where tenant = ? and task = ? and dedup_key = ? and dedup_key is not null
  and finished_at is null

-- name: find_job
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, input, result, error,
       error_class, reason, history,
       created_at, run_at, expires_at, started_at, finished_at, batch_id, webhook
from jobs join inputs using (seq)
where id = :id and (:tenant is null or tenant = :tenant)

-- name: list_jobs
-- The page's frame: {states} names the states, and with them the index; {filters} the rest. To SQLite every text comes
-- before the empty blob, which stands for the top.
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, null, null, error, error_class, reason, null,
       created_at, run_at, expires_at, started_at, finished_at, batch_id, webhook
from jobs {index}
where id < coalesce(:after, x'') {states} {filters}
order by id desc limit :limit

-- name: count_matching
select count(*) from jobs {index} where true {states} {filters}

-- name: causes
-- What the dead letters have in common: as many rows are touched as there are of them.
select tenant, task, model, reason, error_class, count(*), max(finished_at)
from jobs {index} where true {states} {filters}
group by tenant, task, model, reason, error_class
order by count(*) desc, max(id) desc limit :limit

-- name: states_of
select id, state from jobs where id in (select value from json_each(?))

-- name: count_jobs
-- Counting touches every row of the tenant; screens ask for it, calls never do.
select state, count(*) from jobs where (:tenant is null or tenant = :tenant) group by state

-- name: backlog
-- Walks along those who wait, those who run and the dead letters; history is left alone.
select * from
    (select count(*), min(run_at) from jobs indexed by jobs_expiring where owner is null and finished_at is null),
    (select count(*) from jobs indexed by jobs_running where state = 'running'),
    (select count(*), min(finished_at), coalesce(sum(finished_at >= :dead_since), 0) from jobs indexed by jobs_rare
     where state = 'dead_letter' and finished_at is not null and state <> 'completed')

-- name: waiting_by_tenant
select tenant, count(*) from jobs where owner is null and finished_at is null group by tenant

-- name: stored_bytes
select tenant, bytes from stored_bytes where :tenant is null or tenant = :tenant

-- name: stored_bytes_of
select bytes from stored_bytes where tenant = ?

-- name: cancel_pending
update jobs set state = 'cancelled', finished_at = :now, reason = :why, history = coalesce(history, '') || :entry
where id = :id and (:tenant is null or tenant = :tenant) and state in ('scheduled', 'ready', 'suspect')

-- name: cancel_running
update jobs set cancel_at = coalesce(cancel_at, :now)
where id = :id and (:tenant is null or tenant = :tenant) and state = 'running'

-- name: state_of
select state from jobs where id = :id and (:tenant is null or tenant = :tenant)

-- name: make_due
update jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end, run_at = :now,
    due = :now + priority * 60.0 - (lane = 'interactive') * 600.0
where id = :id and tenant = :tenant and state = 'scheduled'

-- name: make_deferred_due
update jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end, run_at = :now,
    due = :now + priority * 60.0 - (lane = 'interactive') * 600.0
where state = 'scheduled' and error_class = 'deferred' and task in (select value from json_each(:tasks))

-- name: replay_job
-- A dead letter as a new generation. One whose work another live job does already stays where it is.
update or ignore jobs set
    state = 'ready', generation = generation + 1, attempts = 0, crashes = 0, silences = 0, deferrals = 0, revivals = 0,
    run_at = :now, due = :now + priority * 60.0 - (lane = 'interactive') * 600.0, expires_at = :expires_at,
    model = coalesce(:model, model), started_at = null, finished_at = null, cancel_at = null, revive_at = null,
    reason = null, error = null, error_class = null, progress = null, history = coalesce(history, '') || :entry
where id = :id and (:tenant is null or tenant = :tenant) and state = 'dead_letter'

-- name: replayable
select seq, generation, input from jobs join inputs using (seq)
where id = :id and (:tenant is null or tenant = :tenant) and state = 'dead_letter'

-- name: change_input
update inputs set input = ? where seq = ?

-- name: drop_steps
delete from steps where job_id = ?

-- name: discard_job
update jobs set state = 'cancelled', reason = 'discarded', finished_at = :now, revive_at = null,
    history = coalesce(history, '') || :entry
where id = :id and (:tenant is null or tenant = :tenant) and state = 'dead_letter'
