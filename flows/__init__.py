"""The flows that a user starts, mostly one a file, and the commands, forms and plans of all."""
