"""The policy as a function of its weights: values, derivatives, what the engine refuses."""
