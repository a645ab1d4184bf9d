"""Adapters for other libraries, one module each; a module imports its library only if necessary."""
