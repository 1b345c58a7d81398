"""The policy as a function of its weights: values, derivatives, and checks of the inputs."""
