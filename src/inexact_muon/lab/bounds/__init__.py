"""Statements about training checked on problems whose constants are proved."""
