"""Several configurations and seeds side by side, each run in a process and a folder of its own."""
