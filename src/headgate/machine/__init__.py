"""What the machine gives and rooms above only use: time, ids, a loop in a thread, SQLite files. Decides nothing."""
