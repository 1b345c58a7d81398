"""Processes, private files and the settings of this machine."""
