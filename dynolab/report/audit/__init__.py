"""The page of an audit of pairs, and what it foresaw."""
