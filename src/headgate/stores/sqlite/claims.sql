-- name: join_node
insert into nodes (id) values (?) on conflict (id) do nothing

-- name: raise_beat
update nodes set beat = beat + 1 where id = ? and gone is null

-- name: other_beats
select id, beat from nodes where id <> ? and gone is null

-- name: leave_node
delete from nodes where id = ?

-- name: lives
select 1 from nodes where id = ? and gone is null

-- name: bury_node
-- A beat that was raised since proves that the node lives; null: its death is proven.
update nodes set gone = :how where id = :id and gone is null and beat = coalesce(:beat, beat)

-- name: mark_lost
-- What is known of this death, for each job that dies with the node.
update jobs set silences = silences + :silent,
    alone = (select count(*) = 1 from jobs as other where other.state = 'running' and other.owner = :node)
where state = 'running' and owner = :node

-- name: to_cancel
-- This node's jobs that somebody wants stopped.
select id, lease from jobs where state = 'running' and owner = ? and cancel_at is not null

-- name: next_scheduled
select min(run_at) from jobs where state = 'scheduled'

-- name: promote
-- What was scheduled and is due now stands in line; those who were around at crashes stand apart.
update jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end
where seq in (select seq from jobs where state = 'scheduled' and run_at <= :now order by run_at limit :limit)

-- name: ready_tenants
-- A walk over the tenants that have ready jobs, from one to the next: it never reads their backlog.
with recursive walk (tenant) as (
    select min(tenant) from jobs where state = 'ready' and tenant >= :from
    union all
    select (select min(tenant) from jobs where state = 'ready' and tenant > walk.tenant)
    from walk where tenant is not null
    limit :limit
)
select tenant from walk where tenant is not null

-- name: ready_models
-- The same over the models of one of them.
with recursive walk (model) as (
    select min(model) from jobs where state = 'ready' and tenant = :tenant and model >= :from
    union all
    select (select min(model) from jobs where state = 'ready' and tenant = :tenant and model > walk.model)
    from walk where model is not null
    limit :limit
)
select model from walk where model is not null

-- name: any_suspect
select 1 from jobs where state = 'suspect' limit 1

-- name: line
-- The first of one tenant's line for a model, as they will be once they are taken.
select id, lease + 1, tenant, task, model, lane, priority, input, attempts + 1, max_attempts, generation, crashes,
       deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, :now, webhook, metadata,
       batch_id, access_key, seq
from jobs join inputs using (seq)
where state = 'ready' and tenant = :tenant and model = :model order by due, seq limit :places

-- name: suspects_line
select id, lease + 1, tenant, task, model, lane, priority, input, attempts + 1, max_attempts, generation, crashes,
       deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, :now, webhook, metadata,
       batch_id, access_key, seq
from jobs join inputs using (seq)
where state = 'suspect' order by due, seq limit :places

-- name: take
update jobs set state = 'running', attempts = attempts + 1, lease = lease + 1, owner = :node, started_at = :now,
                cancel_at = null
where seq in (select value from json_each(:seqs))

-- name: settle
-- What came of claimed jobs, many at a time; of each all or nothing, and only where the claim still holds.
-- Those that end keep their times. `jsonb_each` gives out what is inside without writing it as text in between.
update jobs set state = news.state, attempts = news.attempts, crashes = news.crashes, deferrals = news.deferrals,
    run_at = coalesce(news.run_at, jobs.run_at), due = coalesce(news.due, jobs.due), finished_at = news.finished_at,
    revive_at = news.revive_at, reason = news.reason, error = news.error, error_class = news.error_class,
    history = coalesce(jobs.history, '') || news.entry, result = news.result, owner = null
from (select value ->> 0 as id, value ->> 1 as lease, value ->> 2 as state, value ->> 3 as attempts,
             value ->> 4 as crashes, value ->> 5 as deferrals, value ->> 6 as run_at, value ->> 7 as due,
             value ->> 8 as finished_at, value ->> 9 as revive_at, value ->> 10 as reason, value ->> 11 as error,
             value ->> 12 as error_class, value ->> 13 as entry, value ->> 14 as result
      from jsonb_each(?)) as news
where jobs.id = news.id and jobs.lease = news.lease and jobs.state = 'running'
returning id, tenant, cancel_at

-- name: holds
select tenant from jobs where id = ? and lease = ? and state = 'running'

-- name: save_step
insert into steps (job_id, name, result, saved_at, tenant) values (?, ?, ?, ?, ?)
on conflict (job_id, name) do update set result = excluded.result, saved_at = excluded.saved_at

-- name: steps_of
select name, result from steps where job_id = ?

-- name: save_progress
update jobs set progress = ? where id = ? and lease = ? and state = 'running'
