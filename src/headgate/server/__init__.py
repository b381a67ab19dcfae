"""The HTTP edge: parse, call, format. Errors become answers in one place."""
