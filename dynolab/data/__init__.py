"""Data: rows, where they come from, and how they become token batches."""
