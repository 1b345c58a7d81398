"""The report of a study: learning paths, step forces, squeezing, answers."""
