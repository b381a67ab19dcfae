"""One request, now: gate, attempts, streams, micro-batches."""
