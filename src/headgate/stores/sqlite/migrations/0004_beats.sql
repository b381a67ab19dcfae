-- A node shows that it lives by raising its beat. An observer that saw the same beat for a whole lease declares it dead.
alter table nodes add column beat integer not null default 0;
alter table nodes add column gone text check (gone in ('dead', 'silent'));     -- its death is proven, or only likely
update nodes set gone = 'dead';
alter table nodes drop column expires_at;
alter table jobs add column silences integer not null default 0;    -- how often it was taken from a node that was only silent
alter table jobs add column alone integer not null default 0;       -- its node ran nothing else when it died
