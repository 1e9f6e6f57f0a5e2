"""Where the time goes: phases under the clock, the processor's counters, and a model of its caches."""
