"""One file per command: its arguments, what it calls, what it prints."""
