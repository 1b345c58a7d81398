"""The page of trainings on sampled groups."""
