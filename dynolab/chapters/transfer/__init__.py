"""Task heads, and how fast two factorisations adapt."""
