"""Experiments beyond the core: a wing that the platform finds where its folder is."""
