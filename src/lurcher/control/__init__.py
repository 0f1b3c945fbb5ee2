"""Composes a job with those that watch over it: the pure coordinator, and what carries its orders out."""
