-- name: kept
-- What a job takes along unchanged, from the live table to the finished one and back; stands for {kept} elsewhere.
id, tenant, task, model, lane, priority, max_attempts, generation, lease, hold, revivable, timeout_s, created_at,
started_at, dedup_key, batch_id, webhook, access_key, progress, metadata, input

-- name: insert_jobs
-- Jobs on their way in. One whose work another live job does already is left out.
insert into headgate.jobs (id, tenant, task, model, state, lane, priority, max_attempts, hold, revivable, timeout_s,
                           created_at, run_at, due, expires_at, dedup_key, metadata, input, batch_id, webhook,
                           access_key)
select unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]),
       unnest($6::text[]), unnest($7::integer[]), unnest($8::integer[]), unnest($9::boolean[]),
       unnest($10::boolean[]), unnest($11::float8[]), unnest($12::float8[]), unnest($13::float8[]),
       unnest($14::float8[]), unnest($15::float8[]), unnest($16::text[]), unnest($17::bytea[]),
       unnest($18::bytea[]), unnest($19::text[]), unnest($20::text[]), unnest($21::text[])
on conflict (tenant, task, dedup_key) where dedup_key is not null do nothing
returning id

-- name: find_twins
-- The live jobs that do the same work.
select wanted.n, job.id
from (select unnest($1::integer[]) as n, unnest($2::text[]) as tenant, unnest($3::text[]) as task,
             unnest($4::text[]) as dedup_key) as wanted
join headgate.jobs as job
  on job.tenant = wanted.tenant and job.task = wanted.task and job.dedup_key = wanted.dedup_key
 and job.dedup_key is not null

-- name: find_job
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, input, null::bytea, error, error_class, null::text,
       history, created_at, run_at, expires_at, started_at, null::float8, batch_id, webhook
from headgate.jobs where id = $1 and ($2::text is null or tenant = $2)
union all
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, input, result, error, error_class, reason,
       history, created_at, run_at, expires_at, started_at, finished_at, batch_id, webhook
from headgate.finished_jobs where id = $1 and ($2::text is null or tenant = $2)

-- name: list_live
-- Half of a page's frame: {filters} names the states, and with them the index, and the rest.
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, null::bytea, null::bytea, error, error_class,
       null::text, null::text, created_at, run_at, expires_at, started_at, null::float8, batch_id, webhook
from headgate.jobs where ($1::text is null or id < $1) {filters} order by id desc limit $2

-- name: list_finished
-- The other half.
select id, task, state, tenant, model, lane, priority, attempts, max_attempts, generation, crashes, deferrals,
       revivals, dedup_key, hold, timeout_s, metadata, progress, null::bytea, null::bytea, error, error_class,
       reason, null::text, created_at, run_at, expires_at, started_at, finished_at, batch_id, webhook
from headgate.finished_jobs where ($1::text is null or id < $1) {filters} order by id desc limit $2

-- name: count_live
select count(*) from headgate.jobs where true {filters}

-- name: count_finished
select count(*) from headgate.finished_jobs where true {filters}

-- name: causes
-- What the dead letters have in common: as many rows are touched as there are of them.
select tenant, task, model, reason, error_class, count(*), max(finished_at)
from headgate.finished_jobs where true {filters}
group by tenant, task, model, reason, error_class
order by count(*) desc, max(id) desc limit $1

-- name: states_of
select id, state from headgate.jobs where id = any($1::text[])
union all
select id, state from headgate.finished_jobs where id = any($1::text[])

-- name: count_jobs
-- Counting touches every row of the tenant; screens ask for it, calls never do.
select state, count(*) from headgate.jobs where ($1::text is null or tenant = $1) group by state
union all
select state, count(*) from headgate.finished_jobs where ($1::text is null or tenant = $1) group by state

-- name: backlog
-- Walks along the live jobs and the dead letters; the rest of history is left alone.
select * from
    (select count(*) filter (where state <> 'running'), min(run_at) filter (where state <> 'running'),
            count(*) filter (where state = 'running') from headgate.jobs) as live,
    (select count(*), min(finished_at), count(*) filter (where finished_at >= $1)
     from headgate.finished_jobs where state = 'dead_letter') as dead

-- name: waiting_by_tenant
select tenant, count(*) from headgate.jobs where state in ('scheduled', 'ready', 'suspect') group by tenant

-- name: stored_bytes
select tenant, sum(bytes)::bigint from headgate.stored_bytes where $1::text[] is null or tenant = any($1) group by tenant

-- name: lock_live
-- Whoever wants to move the job now waits for us.
select state from headgate.jobs where id = $1 and ($2::text is null or tenant = $2) for update

-- name: state_of
select state from headgate.jobs where id = $1 and ($2::text is null or tenant = $2)
union all
select state from headgate.finished_jobs where id = $1 and ($2::text is null or tenant = $2)

-- name: cancel_pending
with gone as (
    delete from headgate.jobs where id = $1 and state in ('scheduled', 'ready', 'suspect') returning *
)
insert into headgate.finished_jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, expires_at,
                                    finished_at, reason, error, error_class, history)
select {kept}, 'cancelled', attempts, crashes, deferrals, revivals, run_at, expires_at,
       $2::float8, $3::text, error, error_class, coalesce(history, '') || $4
from gone

-- name: cancel_running
update headgate.jobs set cancel_at = coalesce(cancel_at, $2) where id = $1 and state = 'running'

-- name: lock_dead
-- Dead letters that are to be replayed; their input only if it is to be kept in the history.
select id, generation, case when $3 then input end
from headgate.finished_jobs
where id = any($1::text[]) and ($2::text is null or tenant = $2) and state = 'dead_letter'
for update

-- name: make_due
update headgate.jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end, run_at = $3::float8,
    due = $3::float8 + priority * 60.0 - case when lane = 'interactive' then 600.0 else 0.0 end
where id = $1 and tenant = $2 and state = 'scheduled' returning id

-- name: make_deferred_due
update headgate.jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end, run_at = $2::float8,
    due = $2::float8 + priority * 60.0 - case when lane = 'interactive' then 600.0 else 0.0 end
where state = 'scheduled' and error_class = 'deferred' and task = any($1::text[]) returning id

-- name: replay_jobs
-- Dead letters as a new generation. One whose work another live job does already stays where it is.
with moved as (
    insert into headgate.jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, due, expires_at, history)
    select id, tenant, task, coalesce($6::text, model), lane, priority, max_attempts, generation + 1, lease, hold, revivable, timeout_s,
           created_at, null, dedup_key, batch_id, webhook, access_key, null, metadata, coalesce($5::bytea, input), 'ready', 0, 0, 0, 0,
           $3::float8,
           $3 + priority * 60.0 - case when lane = 'interactive' then 600.0 else 0.0 end, $4::float8,
           coalesce(history, '') || told.entry
    from unnest($1::text[], $2::text[]) with ordinality as told (dead_id, entry, turn)
    join headgate.finished_jobs on id = told.dead_id and state = 'dead_letter'
    order by told.turn
    on conflict do nothing
    returning id
), gone as (
    delete from headgate.finished_jobs where id in (select id from moved)
)
select id from moved

-- name: drop_steps
delete from headgate.steps where job_id = any($1::text[])

-- name: discard_jobs
update headgate.finished_jobs
set state = 'cancelled', reason = 'discarded', finished_at = $3, revive_at = null,
    history = coalesce(history, '') || $4
where id = any($1::text[]) and ($2::text is null or tenant = $2) and state = 'dead_letter'
returning id
