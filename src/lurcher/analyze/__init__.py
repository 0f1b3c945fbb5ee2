"""From files or a run directory to a verdict. Free of torch."""
