"""How supervisor and ranks agree, as two state machines without processes, pipes or clocks.

`SupervisorMachine` and `RankMachine` take events and return effects; both are values. Who runs them (the live supervisor and rank,
a test that tries every order of events) carries the effects out and reports what came of them.
"""
