"""The account of a whole training: who moved which answer, at which step, and what pushed back."""
