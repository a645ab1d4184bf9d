"""Reads the source of forward passes, to see which layer takes which layer's output. Nothing is run.

An abstract interpreter of Python's syntax trees. A tensor is represented by the layers whose outputs it carries; a
layer consumes what its arguments carry, and everything that is not a layer passes it on. Modules, their attributes and
plain numbers are the real ones, so that loops over layers and conditions on options are followed as they will run.
"""
