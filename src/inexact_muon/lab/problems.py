"""The name under which `inexact_muon_lab.problems` is typed; both are one module."""

import sys

from inexact_muon_lab import problems

sys.modules[__name__] = problems
