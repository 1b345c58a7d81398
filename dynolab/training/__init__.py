"""Training: a short loop on DeepSpeed ranks or in one process, resumable to the bit."""
