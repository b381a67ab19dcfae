-- name: unique_holder
-- Another record that has this unique key already.
select id from records where tenant = ? and collection = ? and unique_key = ? and id <> ?

-- name: put_record
insert into records (tenant, collection, id, body, unique_key, text, folded, job_id, created_at, updated_at)
values (:tenant, :collection, :id, :body, :unique_key, :text, :folded, :job_id, :now, :now)
on conflict (tenant, collection, id) do update set
    body = excluded.body, unique_key = excluded.unique_key, text = excluded.text,
    folded = excluded.folded,    job_id = coalesce(excluded.job_id, records.job_id), updated_at = excluded.updated_at

-- name: get_record
select tenant, collection, id, body, unique_key, text, job_id, created_at, updated_at
from records where tenant = ? and collection = ? and id = ?

-- name: find_record
select tenant, collection, id, body, unique_key, text, job_id, created_at, updated_at
from records where tenant = ? and collection = ? and unique_key = ?

-- name: list_records
select tenant, collection, id, body, unique_key, text, job_id, created_at, updated_at
from records
where tenant = :tenant and collection = :collection and (:after is null or id < :after)
  and (:text is null or instr(folded, :text) > 0)
order by id desc limit :limit

-- name: delete_record
delete from records where tenant = ? and collection = ? and id = ?
