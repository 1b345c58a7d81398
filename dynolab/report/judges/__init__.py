"""The page that compares policies by judging their answers."""
