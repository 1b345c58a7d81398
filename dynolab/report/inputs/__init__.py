"""What pages are made of, read from the files that stages wrote."""
