"""Events out of a running job."""
