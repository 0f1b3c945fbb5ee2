"""Events to iterations: where the time of each rank went, as own work, waiting and transfer."""
