"""What the examples share: data, training, and plots (extra `lab`)."""
