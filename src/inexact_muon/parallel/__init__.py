"""The oracle on many ranks: strategies as frozen values, placement of parameters, and communication."""

from inexact_muon.parallel.compressors import COMPRESSORS as COMPRESSORS
from inexact_muon.parallel.compressors import Compressor as Compressor
from inexact_muon.parallel.compressors import Identity as Identity
from inexact_muon.parallel.compressors import LowRank as LowRank
from inexact_muon.parallel.compressors import Natural as Natural
from inexact_muon.parallel.compressors import TopK as TopK
from inexact_muon.parallel.team import Team as Team
from inexact_muon.parallel.wire import Wire as Wire
from inexact_muon.strategies import STRATEGIES as STRATEGIES
from inexact_muon.strategies import AutoStrategy as AutoStrategy
from inexact_muon.strategies import BlockPeriodic as BlockPeriodic
from inexact_muon.strategies import GramReduced as GramReduced
from inexact_muon.strategies import OwnerRank as OwnerRank
from inexact_muon.strategies import Replicated as Replicated
from inexact_muon.strategies import Strategy as Strategy
from inexact_muon.strategies import parse as parse
