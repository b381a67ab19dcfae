-- A node shows that it lives by raising its beat. An observer that saw the same beat for a whole lease declares it dead.
alter table headgate.nodes
    add column beat bigint not null default 0,
    add column gone text collate "C" check (gone in ('dead', 'silent'));    -- its death is proven, or only likely
update headgate.nodes set gone = 'dead';
alter table headgate.nodes drop column expires_at;
alter table headgate.jobs
    add column silences integer not null default 0,     -- how often it was taken from a node that was only silent
    add column alone boolean not null default false;    -- its node ran nothing else when it died
