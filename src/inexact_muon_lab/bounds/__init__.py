"""Bounds of the theorems, checked on problems with proved constants."""
