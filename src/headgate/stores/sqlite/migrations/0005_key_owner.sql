-- A node looks through the keys it holds at each renewal. Only those without an answer have an owner.
create index idempotency_keys_owner on idempotency_keys (owner) where owner is not null;
