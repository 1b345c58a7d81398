"""Labelled images: settings, readers, and how they are split."""
