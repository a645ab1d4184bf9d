"""Views: how a parameter is cut into the matrices to which ball and scale are applied.

A view is a frozen value with a text form, like balls and lengths. It cuts a whole tensor, or a rank's piece of one:
`first` is then the index of the piece's first entry in each dimension of the whole tensor, and `shape` the whole shape.
"""

from inexact_muon._text import read
from inexact_muon.views.base import BATCH as BATCH
from inexact_muon.views.base import COLUMNS as COLUMNS
from inexact_muon.views.base import ROWS as ROWS
from inexact_muon.views.base import Misfit as Misfit
from inexact_muon.views.base import Split as Split
from inexact_muon.views.base import Transposed as Transposed
from inexact_muon.views.base import View as View
from inexact_muon.views.base import Whole as Whole
from inexact_muon.views.blocks import Flatten as Flatten
from inexact_muon.views.blocks import Interleaved as Interleaved
from inexact_muon.views.blocks import Stacked as Stacked

VIEWS: dict[str, type[View]] = {view.name: view for view in (Whole, Flatten, Stacked, Split, Interleaved, Transposed)}
"""Name -> class, for parsing."""


def parse(text: str) -> View:
    """Parse a view: "whole", "flatten", "split:3", "transposed(inner=split(rows=(512, 128, 128)))"."""
    return read(text, VIEWS)
