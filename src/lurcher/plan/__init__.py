"""Which change of the layout pays, and when: splits of micro-batches, the bound, the ladder. Pure functions."""
