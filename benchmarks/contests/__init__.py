"""What is compared with what: one module for each part of the book."""
