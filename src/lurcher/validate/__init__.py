"""Suspicions to findings: short benchmarks of the suspects, and the pure judge of their results."""
