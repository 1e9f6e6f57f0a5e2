"""One file a command: its arguments, what it calls, what it prints."""
