"""SQLite files the one right way: where they lie, how they are opened, what their errors mean. Knows no table."""
