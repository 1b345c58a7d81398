"""The page of an audit of pairs, and how well the audit predicted training."""
