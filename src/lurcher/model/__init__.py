"""What an iteration should cost: schedules as text, the walk of the critical path, the learned cost model."""
