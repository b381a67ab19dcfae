-- Claims walk along tenants first, then along each one's models.
drop index headgate.jobs_ready;
create index jobs_ready on headgate.jobs (tenant, model, due, id) where state = 'ready';
-- The id of the access key that a job was submitted with: what it uses counts against that key's limits.
alter table headgate.jobs add column access_key text collate "C";
alter table headgate.finished_jobs add column access_key text collate "C";
