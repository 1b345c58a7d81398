"""Pages, figures and tables; the other packages measure what they show."""
