-- name: join_node
insert into headgate.nodes (id) values ($1) on conflict (id) do nothing

-- name: renew_node
-- Also returns the database's time, the other nodes' beats and, a row each, this node's jobs that are to be cancelled.
with alive as (
    update headgate.nodes set beat = beat + 1 where id = $1 and gone is null returning id
), others as (
    select array_agg(id) as ids, array_agg(beat) as beats from headgate.nodes where id <> $1 and gone is null
)
select extract(epoch from clock_timestamp())::float8, others.ids, others.beats, job.id, job.lease
from alive
cross join others
left join headgate.jobs as job on job.owner = alive.id and job.cancel_at is not null

-- name: leave_node
delete from headgate.nodes where id = $1 returning id

-- name: bury_nodes
-- Nodes whose death is proven ($2 null), or one that was silent and whose beat is still $2. What is known of this death
-- is written down for each job that dies with its node.
with buried as (
    update headgate.nodes set gone = case when $2::bigint is null then 'dead' else 'silent' end
    where id = any($1::text[]) and gone is null and beat = coalesce($2, beat)
    returning id
), held as (
    select owner, count(*) as jobs from headgate.jobs where owner in (select id from buried) group by owner
), marked as (
    update headgate.jobs as job
    set alone = held.jobs = 1, silences = silences + case when $2 is null then 0 else 1 end
    from held where job.owner = held.owner
)
select id from buried

-- name: look
-- The models that have ready jobs (a walk from one to the next, which never reads their backlog), whether suspects
-- wait, and when the next job gets due.
with recursive walk (model, number) as (
    (select model, 1 from headgate.jobs where state = 'ready' order by model limit 1)
    union all
    select next.model, walk.number + 1
    from walk, lateral (select model from headgate.jobs where state = 'ready' and model > walk.model
                        order by model limit 1) as next
    where walk.number < 1000
)
select array(select model from walk order by number),
       exists (select from headgate.jobs where state = 'suspect'),
       (select min(run_at) from headgate.jobs where state = 'scheduled')

-- name: promote
-- What was scheduled and is due now stands in line; those who were around at crashes stand apart.
update headgate.jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end
where id = any(array(select id from headgate.jobs where state = 'scheduled' and run_at <= $1
                     order by run_at limit $2 for update skip locked))
  and state <> 'running'

-- name: claim
-- Walks round the model's tenants from the one after $2 on, gives each its share of the $3 places, and takes that
-- much of its line. `wrapped` says that the walk went back to the first tenant, so that it does so only once.
-- `due` is the head of the tenant's line: the index still holds those who were claimed since the last vacuum, and
-- they are stepped over once, in the walk, not again in the line. What is picked is locked, so its place in the table
-- finds it again at a third of the cost of its id.
with recursive walk (start, tenant, due, place, wrapped) as (
    select coalesce(later.tenant, front.tenant), coalesce(later.tenant, front.tenant),
           coalesce(later.due, front.due), 1, later.tenant is null or $2 = ''
    from headgate.nodes
    left join lateral (select tenant, due from headgate.jobs
                       where state = 'ready' and model = $1 and tenant > $2
                       order by tenant, due limit 1) as later on true
    left join lateral (select tenant, due from headgate.jobs
                       where state = 'ready' and model = $1 and tenant > '' and later.tenant is null
                       order by tenant, due limit 1) as front on true
    where nodes.id = $4 and nodes.gone is null
    union all
    select walk.start, coalesce(later.tenant, front.tenant), coalesce(later.due, front.due), walk.place + 1,
           walk.wrapped or later.tenant is null
    from walk
    left join lateral (select tenant, due from headgate.jobs
                       where state = 'ready' and model = $1 and tenant > walk.tenant
                       order by tenant, due limit 1) as later on true
    left join lateral (select tenant, due from headgate.jobs
                       where state = 'ready' and model = $1 and tenant > '' and later.tenant is null
                         and not walk.wrapped
                       order by tenant, due limit 1) as front on true
    where walk.place < $3::integer and coalesce(later.tenant, front.tenant) <> walk.start
),
shared as (
    select tenant, due, $3 / count(*) over () + case when place <= $3 % count(*) over () then 1 else 0 end as share
    from walk
    where tenant is not null
),
picked as (
    select job.place
    from shared, lateral (
        select ctid as place from headgate.jobs
        where state = 'ready' and model = $1 and tenant = shared.tenant and due >= shared.due
        order by due, id limit shared.share for update skip locked
    ) as job
)
update headgate.jobs
set state = 'running', attempts = attempts + 1, lease = lease + 1, owner = $4, started_at = $5, cancel_at = null,
    claim = $6
where ctid = any(array(select place from picked)) and state <> 'running'
returning id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation, crashes,
          deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
          metadata, batch_id, due

-- name: claim_suspects
update headgate.jobs
set state = 'running', attempts = attempts + 1, lease = lease + 1, owner = $1, started_at = $2, cancel_at = null,
    claim = $4
where id = any(array(select id from headgate.jobs
                     where state = 'suspect'
                       and exists (select from headgate.nodes where nodes.id = $1 and nodes.gone is null)
                     order by due, id limit $3 for update skip locked))
  and state <> 'running'
returning id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation, crashes,
          deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
          metadata, batch_id, due

-- name: give_back
-- What claims took whose answers never arrived: as if they had not been made. The lease stays raised.
update headgate.jobs
set state = case when crashes >= 2 then 'suspect' else 'ready' end, attempts = attempts - 1, owner = null, claim = null
where owner = $1 and claim = any($2::bigint[]) and cancel_at is null
returning id

-- name: settle_back
-- Back to waiting, if the claim still holds and nobody asked to stop the job. Here and below, the state is compared
-- with a column: of a literal the planner thinks it knows how rare it is, and when nothing ran at the time of the
-- last analyze, it compares every running job with every settlement.
with news as materialized (
    select unnest($1::integer[]) as n, unnest($2::text[]) as id, unnest($3::bigint[]) as lease,
           unnest($4::text[]) as state, unnest($5::integer[]) as attempts, unnest($6::integer[]) as crashes,
           unnest($7::integer[]) as deferrals, unnest($8::float8[]) as run_at, unnest($9::float8[]) as due,
           unnest($10::text[]) as error, unnest($11::text[]) as error_class, unnest($12::text[]) as entry,
           'running' as held
)
update headgate.jobs as job
set state = news.state, attempts = news.attempts, crashes = news.crashes, deferrals = news.deferrals,
    run_at = news.run_at, due = news.due, owner = null, claim = null, error = news.error,
    error_class = news.error_class, history = coalesce(history, '') || news.entry
from news
where job.id = news.id and job.lease = news.lease and job.state = news.held and job.cancel_at is null
returning news.n, job.tenant

-- name: settle_cancelled
-- Somebody asked to stop it while it ran: it does not wait for another try.
with news as materialized (
    select unnest($1::integer[]) as n, unnest($2::text[]) as id, unnest($3::bigint[]) as lease,
           unnest($4::integer[]) as attempts, unnest($5::integer[]) as crashes, unnest($6::integer[]) as deferrals,
           unnest($7::float8[]) as run_at, unnest($8::text[]) as error, unnest($9::text[]) as error_class,
           unnest($10::text[]) as entry, unnest($11::float8[]) as finished_at, 'running' as held
), gone as (
    delete from headgate.jobs as job using news
    where job.id = news.id and job.lease = news.lease and job.state = news.held and job.cancel_at is not null
    returning job.*, news.n, news.attempts as new_attempts, news.crashes as new_crashes,
              news.deferrals as new_deferrals, news.run_at as new_run_at, news.error as new_error,
              news.error_class as new_error_class, news.entry, news.finished_at
), moved as (
    insert into headgate.finished_jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, expires_at,
                                        finished_at, reason, error, error_class, history)
    select {kept}, 'cancelled', new_attempts, new_crashes, new_deferrals, revivals, new_run_at, expires_at,
           finished_at, 'cancelled', new_error, new_error_class, coalesce(history, '') || entry
    from gone
)
select n, tenant from gone

-- name: settle_final
-- The end of the job, its result included, if the claim still holds.
with news as materialized (
    select unnest($1::integer[]) as n, unnest($2::text[]) as id, unnest($3::bigint[]) as lease,
           unnest($4::text[]) as state, unnest($5::integer[]) as attempts, unnest($6::integer[]) as crashes,
           unnest($7::integer[]) as deferrals, unnest($8::float8[]) as finished_at,
           unnest($9::float8[]) as revive_at, unnest($10::bytea[]) as result, unnest($11::text[]) as reason,
           unnest($12::text[]) as error, unnest($13::text[]) as error_class, unnest($14::text[]) as entry,
           'running' as held
), gone as (
    delete from headgate.jobs as job using news
    where job.id = news.id and job.lease = news.lease and job.state = news.held
    returning job.*, news.n, news.state as new_state, news.attempts as new_attempts, news.crashes as new_crashes,
              news.deferrals as new_deferrals, news.finished_at, news.revive_at, news.result, news.reason,
              news.error as new_error, news.error_class as new_error_class, news.entry
), moved as (
    insert into headgate.finished_jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, expires_at,
                                        finished_at, revive_at, reason, error, error_class, history, result)
    select {kept}, new_state, new_attempts, new_crashes, new_deferrals, revivals, run_at, expires_at,
           finished_at, revive_at, reason, new_error, new_error_class, coalesce(history, '') || entry, result
    from gone
)
select n, tenant from gone

-- name: settled_already
-- Which of these are as their settlements wanted them: an earlier try was written, and only its answer was lost.
select wanted.n
from (select unnest($1::integer[]) as n, unnest($2::text[]) as id, unnest($3::bigint[]) as lease,
             unnest($4::text[]) as state, unnest($5::integer[]) as attempts, unnest($6::integer[]) as crashes,
             unnest($7::integer[]) as deferrals) as wanted
where exists (select from headgate.finished_jobs as job
              where job.id = wanted.id and job.lease = wanted.lease and job.attempts = wanted.attempts
                and job.state = case wanted.state when 'pending' then 'cancelled' else wanted.state end)
   or exists (select from headgate.jobs as job
              where job.id = wanted.id and job.lease = wanted.lease and job.attempts = wanted.attempts
                and job.crashes = wanted.crashes and job.deferrals = wanted.deferrals
                and wanted.state = 'pending' and job.state <> 'running')

-- name: save_step
-- The claim is held while its step is written, so that no replay with another input comes between.
insert into headgate.steps (job_id, name, result, saved_at)
select id, $3, $4, $5 from headgate.jobs where id = $1 and lease = $2 and state = 'running' for share
on conflict (job_id, name) do update set result = excluded.result, saved_at = excluded.saved_at
returning job_id

-- name: steps_of
select name, result from headgate.steps where job_id = $1

-- name: save_progress
update headgate.jobs set progress = $3 where id = $1 and lease = $2 and state = 'running' returning id

-- name: what_time
-- As the clock on the database's wall says it, not the transaction's.
select extract(epoch from clock_timestamp())::float8
