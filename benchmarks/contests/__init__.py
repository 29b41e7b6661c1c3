"""What we compare with what: one module per part of the book."""
