"""Run specs and studies: frozen values, read from TOML."""
