-- Replaced at the merge by the migration of the nodes' beats.
select 1;
