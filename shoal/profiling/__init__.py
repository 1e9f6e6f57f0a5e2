"""Where the time goes: phases under the clock, the processor's counters, memory and energy."""
