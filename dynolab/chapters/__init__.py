"""Chapters beyond finetuning: simplicity, classification, supervision, transfer."""
