-- name: unique_holders
-- Other records that have one of these unique keys already.
select wanted.n, holder.id
from (select unnest($1::integer[]) as n, unnest($2::text[]) as tenant, unnest($3::text[]) as collection,
             unnest($4::text[]) as id, unnest($5::bytea[]) as unique_hash) as wanted
join headgate.records as holder
  on holder.tenant = wanted.tenant and holder.collection = wanted.collection
 and holder.unique_hash = wanted.unique_hash and holder.unique_hash is not null and holder.id <> wanted.id

-- name: put_records
insert into headgate.records (tenant, collection, id, body, unique_key, unique_hash, text, folded, job_id,
                              created_at, updated_at)
select tenant, collection, id, body, unique_key, unique_hash, text, folded, job_id, now, now
from (select unnest($1::text[]) as tenant, unnest($2::text[]) as collection, unnest($3::text[]) as id,
             unnest($4::bytea[]) as body, unnest($5::text[]) as unique_key, unnest($6::bytea[]) as unique_hash,
             unnest($7::text[]) as text, unnest($8::text[]) as folded, unnest($9::text[]) as job_id,
             unnest($10::float8[]) as now) as news
on conflict (tenant, collection, id) do update set
    body = excluded.body, unique_key = excluded.unique_key, unique_hash = excluded.unique_hash, text = excluded.text,
    folded = excluded.folded, job_id = coalesce(excluded.job_id, records.job_id), updated_at = excluded.updated_at

-- name: get_record
select tenant, collection, id, body, unique_key, text, job_id, created_at, updated_at
from headgate.records where tenant = $1 and collection = $2 and id = $3

-- name: find_record
select tenant, collection, id, body, unique_key, text, job_id, created_at, updated_at
from headgate.records where tenant = $1 and collection = $2 and unique_hash = $3 and unique_hash is not null

-- name: list_records
select tenant, collection, id, body, unique_key, text, job_id, created_at, updated_at
from headgate.records
where tenant = $1 and collection = $2 and ($3::text is null or id < $3)
  and ($4::text is null or strpos(folded, $4) > 0)
order by id desc limit $5

-- name: delete_record
delete from headgate.records where tenant = $1 and collection = $2 and id = $3 returning id
