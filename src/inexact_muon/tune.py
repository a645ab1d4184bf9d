"""The name under which `inexact_muon_lab.tune` is typed; both are one module."""

import sys

from inexact_muon_lab import tune

sys.modules[__name__] = tune
