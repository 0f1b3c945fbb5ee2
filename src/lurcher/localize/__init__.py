"""Which part of the job stands out: suspicions with their evidence, or a sentence that says why there are none."""
