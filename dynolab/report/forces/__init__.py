"""The page of a force analysis: which pair pushes which answer, and through which parameters."""
