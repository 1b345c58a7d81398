"""Forces of one recorded step: replayed, split, measured, predicted."""
