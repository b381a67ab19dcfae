-- A job may belong to a batch, and may have an address that is told of its end.
alter table headgate.jobs add column batch_id text collate "C", add column webhook text;
alter table headgate.finished_jobs add column batch_id text collate "C", add column webhook text;
-- Pages and counts of a batch go by these alone, and a job without one is in neither.
create index jobs_batch on headgate.jobs (tenant, batch_id, id) include (state) where batch_id is not null;
create index finished_jobs_batch on headgate.finished_jobs (tenant, batch_id, id) include (state)
    where batch_id is not null;
