"""Several trainings from one start: each arm's figures over seeds."""
