"""delta, gap and overshoot of an LMO output: exact, estimated, predicted."""

from inexact_muon.inexactness.measuring import SMALL as SMALL
from inexact_muon.inexactness.measuring import Inexactness as Inexactness
from inexact_muon.inexactness.measuring import assess as assess
from inexact_muon.inexactness.measuring import measure as measure
from inexact_muon.inexactness.measuring import predict as predict
from inexact_muon.inexactness.measuring import worst as worst
