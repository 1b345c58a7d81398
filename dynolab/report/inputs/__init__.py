"""Reads the data of pages from the files that stages wrote."""
