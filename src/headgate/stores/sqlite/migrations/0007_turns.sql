-- Claims walk along tenants first, then along each one's models.
drop index jobs_ready;
create index jobs_ready on jobs (tenant, model, due) where state = 'ready';
-- The id of the access key that a job was submitted with: what it uses counts against that key's limits.
alter table jobs add column access_key text;
