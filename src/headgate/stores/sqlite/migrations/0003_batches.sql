-- A job may belong to a batch, and may have an address that is told of its end.
alter table jobs add column batch_id text;
alter table jobs add column webhook text;
-- Pages and counts of a batch read nothing but this index, and a job without one is not in it.
create index jobs_batch on jobs (tenant, batch_id, id, state) where batch_id is not null;
