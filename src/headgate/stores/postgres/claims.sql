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
-- Whether suspects wait, when the next job gets due, and, a row each, up to $4 tenants that have ready jobs, with the
-- models they have them for: so many of each that all together are about $4. Both are walks from one to the next,
-- which never read the backlog. They begin after tenant $1, and after the models $3 of the tenants $2; and go round.
with recursive later (tenant, turn) as (
    (select tenant, 1 from headgate.jobs where state = 'ready' and tenant > $1 order by tenant limit 1)
    union all
    select next.tenant, turn + 1
    from later, lateral (select tenant from headgate.jobs where state = 'ready' and tenant > later.tenant
                         order by tenant limit 1) as next
    where turn < $4::integer
), front (tenant, turn) as (
    (select tenant, 1 from headgate.jobs where state = 'ready' and tenant <= $1 order by tenant limit 1)
    union all
    select next.tenant, turn + 1
    from front, lateral (select tenant from headgate.jobs where state = 'ready' and tenant > front.tenant
                           and tenant <= $1 order by tenant limit 1) as next
    where turn < $4::integer
), tenants as materialized (
    select tenant, turn from later union all select tenant, $4::integer + turn from front
    order by turn limit $4::integer
), turns as materialized (
    select tenants.tenant, turn, seen.model, greatest(1, $4::integer / count(*) over ()) as share
    from tenants left join unnest($2::text[], $3::text[]) as seen (tenant, model) on seen.tenant = tenants.tenant
)
select exists (select from headgate.jobs where state = 'suspect'),
       (select min(run_at) from headgate.jobs where state = 'scheduled'),
       tenant, models
from (select) as always
left join (
    select turns.tenant, turn, array(
        with recursive later (model, turn) as (
            (select model, 1 from headgate.jobs
             where state = 'ready' and tenant = turns.tenant and model >= coalesce(turns.model || e'\x01', '')
             order by model limit 1)
            union all
            select next.model, turn + 1
            from later, lateral (select model from headgate.jobs
                                 where state = 'ready' and tenant = turns.tenant and model > later.model
                                 order by model limit 1) as next
            where turn < turns.share
        ), front (model, turn) as (
            (select model, 1 from headgate.jobs
             where state = 'ready' and tenant = turns.tenant and model <= turns.model
             order by model limit 1)
            union all
            select next.model, turn + 1
            from front, lateral (select model from headgate.jobs
                                 where state = 'ready' and tenant = turns.tenant and model > front.model
                                   and model <= turns.model
                                 order by model limit 1) as next
            where turn < turns.share
        )
        select model from (select model, turn from later union all select model, turns.share + turn from front) as walk
        order by walk.turn limit turns.share
    ) as models
    from turns
) as lines on true
order by turn

-- name: promote
-- What was scheduled and is due now stands in line; those who were around at crashes stand apart.
update headgate.jobs set state = case when crashes >= 2 then 'suspect' else 'ready' end
where id = any(array(select id from headgate.jobs where state = 'scheduled' and run_at <= $1
                     order by run_at limit $2 for update skip locked))
  and state <> 'running'

-- name: claim
-- The first $3 of the lines of tenants $1 for models $2. What is picked is locked, so its place in the table finds it
-- again at a third of the cost of its id.
with wanted as materialized (
    select tenant, model, places
    from unnest($1::text[], $2::text[], $3::integer[]) as want (tenant, model, places)
    where exists (select from headgate.nodes where nodes.id = $4 and nodes.gone is null)
),
picked as (
    select job.place
    from wanted, lateral (
        select ctid as place from headgate.jobs
        where state = 'ready' and tenant = wanted.tenant and model = wanted.model
        order by due, id limit wanted.places for update skip locked
    ) as job
)
update headgate.jobs
set state = 'running', attempts = attempts + 1, lease = lease + 1, owner = $4, started_at = $5, cancel_at = null,
    claim = $6
where ctid = any(array(select place from picked)) and state <> 'running'
returning id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation, crashes,
          deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
          metadata, batch_id, access_key, due

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
          metadata, batch_id, access_key, due

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
insert into headgate.steps (job_id, name, result, saved_at, tenant)
select id, $3, $4, $5, tenant from headgate.jobs where id = $1 and lease = $2 and state = 'running' for share
on conflict (job_id, name) do update set result = excluded.result, saved_at = excluded.saved_at
returning job_id

-- name: steps_of
select name, result from headgate.steps where job_id = $1

-- name: save_progress
update headgate.jobs set progress = $3 where id = $1 and lease = $2 and state = 'running' returning id

-- name: what_time
-- As the clock on the database's wall says it, not the transaction's.
select extract(epoch from clock_timestamp())::float8
