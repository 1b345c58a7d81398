"""What a notebook begins with: results of studies, and forces between texts."""
