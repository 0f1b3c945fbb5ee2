"""lurcher finds the slow GPU or link in a hybrid-parallel training job, proves it, and keeps the training going around it."""

__version__ = "0.1.0"
