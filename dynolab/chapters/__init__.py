"""Chapters beside finetuning: simplicity, classification, supervision, transfer."""
