-- How many bytes each tenant stores: files, the inputs, results, steps and histories of jobs, records, answers kept under
-- idempotency keys, and 1 KiB for each row: its names, hashes, times, error and places in indexes. Triggers count: the number changes in the transaction that changes the rows, whatever changes them.
-- A tenant's number is the sum of its rows. A transaction adds to a row that no other transaction holds, or makes one:
-- so none waits for another, and there are as many rows as transactions were under way at once.
create table headgate.stored_bytes (
    slot bigint generated always as identity primary key,
    tenant text collate "C" not null,
    bytes bigint not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1);
create index stored_bytes_tenant on headgate.stored_bytes (tenant);

create function headgate.count_bytes(whose text, more bigint) returns void language plpgsql as $$
declare
    mine bigint;
begin
    if more = 0 then
        return;
    end if;
    select slot into mine from headgate.stored_bytes where tenant = whose limit 1 for update skip locked;
    if found then
        update headgate.stored_bytes set bytes = bytes + more where slot = mine;
    else
        insert into headgate.stored_bytes (tenant, bytes) values (whose, more);
    end if;
end $$;

-- A finished job's history may hold the inputs that edited replays replaced. Of a live job only counts what does not
-- change: an update of the line then costs nothing more.
create function headgate.count_jobs() returns trigger language plpgsql as $$
begin
    perform headgate.count_bytes(tenant, bytes) from (
        select tenant, sum(1024 + octet_length(input) + coalesce(octet_length(metadata), 0)
                           + coalesce(octet_length(webhook), 0))::bigint
            * case when tg_op = 'INSERT' then 1 else -1 end as bytes
        from changed group by tenant) as sums;
    return null;
end $$;
create trigger jobs_added after insert on headgate.jobs
    referencing new table as changed for each statement execute function headgate.count_jobs();
create trigger jobs_deleted after delete on headgate.jobs
    referencing old table as changed for each statement execute function headgate.count_jobs();

create function headgate.count_finished_jobs() returns trigger language plpgsql as $$
begin
    perform headgate.count_bytes(tenant, bytes) from (
        select tenant, sum(1024 + octet_length(input) + coalesce(octet_length(metadata), 0)
                           + coalesce(octet_length(webhook), 0) + coalesce(octet_length(result), 0)
                           + coalesce(octet_length(history), 0))::bigint
            * case when tg_op = 'INSERT' then 1 else -1 end as bytes
        from changed group by tenant) as sums;
    return null;
end $$;
create trigger finished_jobs_added after insert on headgate.finished_jobs
    referencing new table as changed for each statement execute function headgate.count_finished_jobs();
create trigger finished_jobs_deleted after delete on headgate.finished_jobs
    referencing old table as changed for each statement execute function headgate.count_finished_jobs();
create function headgate.count_history() returns trigger language plpgsql as $$
begin
    perform headgate.count_bytes(
        new.tenant, coalesce(octet_length(new.history), 0) - coalesce(octet_length(old.history), 0));
    return null;
end $$;
create trigger finished_jobs_changed after update of history on headgate.finished_jobs
    for each row execute function headgate.count_history();

alter table headgate.steps add column tenant text collate "C" not null default '';
update headgate.steps set tenant = coalesce(
    (select tenant from headgate.jobs where id = job_id), (select tenant from headgate.finished_jobs where id = job_id), '');
create function headgate.count_steps() returns trigger language plpgsql as $$
begin
    case tg_op
        when 'INSERT' then perform headgate.count_bytes(new.tenant, 1024 + octet_length(new.result));
        when 'UPDATE' then
            perform headgate.count_bytes(new.tenant, octet_length(new.result) - octet_length(old.result));
        else
            perform headgate.count_bytes(tenant, -bytes) from (
                select tenant, sum(1024 + octet_length(result))::bigint as bytes from changed group by tenant) as sums;
    end case;
    return null;
end $$;
create trigger steps_written after insert or update of result on headgate.steps
    for each row execute function headgate.count_steps();
create trigger steps_deleted after delete on headgate.steps
    referencing old table as changed for each statement execute function headgate.count_steps();

create function headgate.count_keys() returns trigger language plpgsql as $$
begin
    perform headgate.count_bytes(tenant, bytes) from (
        select tenant, sum(1024 + coalesce(octet_length(response_body), 0))::bigint
            * case when tg_op = 'INSERT' then 1 else -1 end as bytes
        from changed group by tenant) as sums;
    return null;
end $$;
create trigger keys_added after insert on headgate.idempotency_keys
    referencing new table as changed for each statement execute function headgate.count_keys();
create trigger keys_deleted after delete on headgate.idempotency_keys
    referencing old table as changed for each statement execute function headgate.count_keys();
create function headgate.count_answers() returns trigger language plpgsql as $$
begin
    perform headgate.count_bytes(
        new.tenant, coalesce(octet_length(new.response_body), 0) - coalesce(octet_length(old.response_body), 0));
    return null;
end $$;
create trigger keys_changed after update of response_body on headgate.idempotency_keys
    for each row when (octet_length(old.response_body) is distinct from octet_length(new.response_body))
    execute function headgate.count_answers();

-- The bytes of a file are in a folder, and its record says how many.
create function headgate.record_bytes(collection text, body bytea) returns bigint language sql immutable as $$
    select 1024 + octet_length(body) + case when collection = 'files'
        then coalesce((convert_from(body, 'UTF8')::jsonb ->> 'bytes')::numeric::bigint, 0) else 0 end
$$;
create function headgate.count_records() returns trigger language plpgsql as $$
begin
    case tg_op
        when 'INSERT' then perform headgate.count_bytes(new.tenant, headgate.record_bytes(new.collection, new.body));
        when 'UPDATE' then
            perform headgate.count_bytes(new.tenant, headgate.record_bytes(new.collection, new.body)
                                                     - headgate.record_bytes(old.collection, old.body));
        else perform headgate.count_bytes(old.tenant, -headgate.record_bytes(old.collection, old.body));
    end case;
    return null;
end $$;
create trigger records_counted after insert or update of body or delete on headgate.records
    for each row execute function headgate.count_records();
create index records_files on headgate.records (id) where collection = 'files';

insert into headgate.stored_bytes (tenant, bytes)
select tenant, sum(bytes)::bigint from (
    select tenant, 1024 + octet_length(input) + coalesce(octet_length(metadata), 0) + coalesce(octet_length(webhook), 0)
        as bytes from headgate.jobs
    union all
    select tenant, 1024 + octet_length(input) + coalesce(octet_length(metadata), 0) + coalesce(octet_length(webhook), 0)
        + coalesce(octet_length(result), 0) + coalesce(octet_length(history), 0) from headgate.finished_jobs
    union all select tenant, 1024 + octet_length(result) from headgate.steps
    union all select tenant, 1024 + coalesce(octet_length(response_body), 0) from headgate.idempotency_keys
    union all select tenant, headgate.record_bytes(collection, body) from headgate.records
) as stored group by tenant;
