"""Mappings from objects to messages: which are learned fast, and why."""
