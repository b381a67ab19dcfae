-- name: lost
-- Running jobs whose node is dead or has left.
select job.id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation, crashes,
       deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
       metadata, batch_id, access_key, case when gone = 'silent' then greatest(silences, 1) else 0 end, alone and gone is not null
from headgate.jobs as job left join headgate.nodes as node on node.id = job.owner
where owner is not null and (node.id is null or gone is not null) limit $1

-- name: forget_nodes
delete from headgate.nodes
where gone is not null and not exists (select from headgate.jobs where owner = nodes.id)
returning id

-- name: uncancelled
select id, lease, tenant, task, model, lane, priority, input, attempts, max_attempts, generation, crashes,
       deferrals, revivals, hold, revivable, timeout_s, run_at, expires_at, started_at, webhook,
       metadata, batch_id, access_key
from headgate.jobs where owner is not null and cancel_at < $1 limit $2

-- name: expire
with gone as (
    delete from headgate.jobs
    where id = any(array(select id from headgate.jobs
                         where state in ('scheduled', 'ready', 'suspect') and expires_at <= $1
                         order by expires_at limit $2 for update skip locked))
      and state <> 'running'
    returning *
)
insert into headgate.finished_jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, expires_at,
                                    finished_at, reason, error, error_class, history)
select {kept}, 'dead_letter', attempts, crashes, deferrals, revivals, run_at, expires_at,
       $1, 'expired', coalesce(error, 'it was not done before it expired'), coalesce(error_class, 'expired'),
       coalesce(history, '') || $3
from gone
returning id, task, tenant, model, error, error_class, attempts, generation, revivals, webhook, metadata,
          batch_id

-- name: revivable
select id, model from headgate.finished_jobs
where state = 'dead_letter' and revive_at is not null and revive_at <= $1 order by revive_at limit $2

-- name: revive_jobs
-- Back to the line. One whose work is being done by another job just now is looked at again later.
with picked as (
    select * from headgate.finished_jobs
    where id = any($1::text[]) and state = 'dead_letter' and revive_at is not null
    for update
), moved as (
    insert into headgate.jobs ({kept}, state, attempts, crashes, deferrals, revivals, run_at, due, expires_at,
                               error, error_class, history)
    select {kept}, case when crashes >= 2 then 'suspect' else 'ready' end, 0, crashes, deferrals, revivals + 1, $2::float8,
           $2 + priority * 60.0 - case when lane = 'interactive' then 600.0 else 0.0 end, $3::float8,
           error, error_class, coalesce(history, '') || $5
    from picked
    on conflict do nothing
    returning id
), gone as (
    delete from headgate.finished_jobs where id in (select id from moved)
), cooled as (
    update headgate.finished_jobs set revive_at = $4
    where id in (select id from picked) and id not in (select id from moved)
)
select id from moved

-- name: prune_jobs
with gone as (
    delete from headgate.finished_jobs
    where id = any(array(select id from headgate.finished_jobs where finished_at < $1
                         order by finished_at limit $2 for update skip locked))
    returning id
), their_steps as (
    delete from headgate.steps where job_id in (select id from gone)
)
select count(*) from gone

-- name: prune_files
delete from headgate.records
where ctid = any(array(select ctid from headgate.records where collection = 'files' and id < $1
                       order by id limit $2 for update skip locked))
returning id

-- name: purge_keys
with gone as (
    delete from headgate.idempotency_keys
    where ctid = any(array(select ctid from headgate.idempotency_keys where expires_at <= $1
                           order by expires_at limit $2 for update skip locked))
    returning 1
)
select count(*) from gone

-- name: cool_jobs
-- Exhausted jobs whose model takes no calls: look again later.
update headgate.finished_jobs set revive_at = $2
where id = any($1::text[]) and state = 'dead_letter' and revive_at is not null
returning id
