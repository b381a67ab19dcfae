"""Where jobs, keys and records live: one port, one behaviour, two databases."""
