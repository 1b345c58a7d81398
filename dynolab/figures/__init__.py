"""Pictures and the report of a study; `verdicts` and `learning_paths` need numpy alone."""
