"""The rows that stages write and pages read, one file per subject."""
