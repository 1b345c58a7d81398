"""Which of the papers' findings appear, in trainings made here or in logs of others."""
