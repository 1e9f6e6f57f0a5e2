"""A model of the data caches of any machine, and the addresses that samplers touch: the misses of a mini-batch."""
