"""The name under which `inexact_muon_lab.theory` is typed; both are one module."""

import sys

from inexact_muon_lab import theory

sys.modules[__name__] = theory
