"""`make check-gpu`: what a machine's GPUs do, beside what the library relies on."""
