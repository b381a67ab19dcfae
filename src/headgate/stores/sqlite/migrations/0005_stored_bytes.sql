-- How many bytes each tenant stores: files, the inputs, results, steps and histories of jobs, records, answers kept under
-- idempotency keys, and 1 KiB for each row: its names, hashes, times, error and places in indexes. Triggers count: the number changes in the transaction that changes the rows, whatever changes them.
create table stored_bytes (tenant text primary key, bytes integer not null) strict, without rowid;

-- An input is written after its job, and removed after it.
create trigger input_added after insert on inputs begin
    insert into stored_bytes (tenant, bytes)
    select tenant, 1024 + octet_length(new.input) + coalesce(octet_length(metadata), 0) + coalesce(octet_length(webhook), 0)
    from jobs where seq = new.seq
    on conflict (tenant) do update set bytes = bytes + excluded.bytes;
end;
create trigger input_changed after update of input on inputs begin
    update stored_bytes set bytes = bytes + octet_length(new.input) - octet_length(old.input)
    where tenant = (select tenant from jobs where seq = new.seq);
end;
-- Only the history of a finished job counts: it may hold the inputs that edited replays replaced.
create trigger job_changed after update of finished_at, result, history on jobs
when old.finished_at is not null or new.finished_at is not null begin
    update stored_bytes set bytes = bytes
        + iif(new.finished_at is null, 0, coalesce(octet_length(new.result), 0) + coalesce(octet_length(new.history), 0))
        - iif(old.finished_at is null, 0, coalesce(octet_length(old.result), 0) + coalesce(octet_length(old.history), 0))
    where tenant = new.tenant;
end;
create trigger job_deleted before delete on jobs begin
    update stored_bytes set bytes = bytes
        - 1024 - coalesce((select octet_length(input) from inputs where seq = old.seq), 0)
        - coalesce(octet_length(old.metadata), 0) - coalesce(octet_length(old.webhook), 0)
        - iif(old.finished_at is null, 0, coalesce(octet_length(old.result), 0) + coalesce(octet_length(old.history), 0))
    where tenant = old.tenant;
end;

alter table steps add column tenant text not null default '';
update steps set tenant = coalesce((select tenant from jobs where id = job_id), '');
create trigger step_added after insert on steps begin
    insert into stored_bytes (tenant, bytes) values (new.tenant, 1024 + octet_length(new.result))
    on conflict (tenant) do update set bytes = bytes + excluded.bytes;
end;
create trigger step_changed after update of result on steps begin
    update stored_bytes set bytes = bytes + octet_length(new.result) - octet_length(old.result) where tenant = new.tenant;
end;
create trigger step_deleted after delete on steps begin
    update stored_bytes set bytes = bytes - 1024 - octet_length(old.result) where tenant = old.tenant;
end;

create trigger key_added after insert on idempotency_keys begin
    insert into stored_bytes (tenant, bytes) values (new.tenant, 1024 + coalesce(octet_length(new.response_body), 0))
    on conflict (tenant) do update set bytes = bytes + excluded.bytes;
end;
create trigger key_changed after update of response_body on idempotency_keys
when octet_length(old.response_body) is not octet_length(new.response_body) begin
    update stored_bytes set bytes = bytes
        + coalesce(octet_length(new.response_body), 0) - coalesce(octet_length(old.response_body), 0)
    where tenant = new.tenant;
end;
create trigger key_deleted after delete on idempotency_keys begin
    update stored_bytes set bytes = bytes - 1024 - coalesce(octet_length(old.response_body), 0) where tenant = old.tenant;
end;

-- The bytes of a file are in a folder, and its record says how many. `size_bytes` is what a record stands for.
alter table records add column size_bytes integer not null generated always as (
    1024 + octet_length(body) + iif(collection = 'files', cast(coalesce(cast(body as text) ->> '$.bytes', 0) as integer), 0)) virtual;
create index records_files on records (id) where collection = 'files';
create trigger record_added after insert on records begin
    insert into stored_bytes (tenant, bytes) values (new.tenant, new.size_bytes)
    on conflict (tenant) do update set bytes = bytes + excluded.bytes;
end;
create trigger record_changed after update of body on records begin
    update stored_bytes set bytes = bytes + new.size_bytes - old.size_bytes where tenant = new.tenant;
end;
create trigger record_deleted after delete on records begin
    update stored_bytes set bytes = bytes - old.size_bytes where tenant = old.tenant;
end;

insert into stored_bytes (tenant, bytes)
select tenant, sum(bytes) from (
    select tenant, 1024 + octet_length(input) + coalesce(octet_length(metadata), 0) + coalesce(octet_length(webhook), 0)
        + iif(finished_at is null, 0, coalesce(octet_length(result), 0) + coalesce(octet_length(history), 0)) as bytes
    from jobs join inputs using (seq)
    union all select tenant, 1024 + octet_length(result) from steps
    union all select tenant, 1024 + coalesce(octet_length(response_body), 0) from idempotency_keys
    union all select tenant, size_bytes from records
) group by tenant;
