"""The machine under a program: processes, threads, memory and its limits, processors, atomic files."""
