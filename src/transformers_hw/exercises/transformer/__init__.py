"""Exercises of a chapter, one file each."""
