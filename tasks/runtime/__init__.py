"""How any stage runs: key, cache, launcher, tracking, progress, services."""
