"""The page of remedies against squeezing."""
