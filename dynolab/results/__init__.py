"""The rows that stages write and pages read, one file a subject."""
