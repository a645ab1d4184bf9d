"""Published variants of Muon: `Muon` with its stages filled in. Each takes all arguments of `Muon`.

Another beta2 or eps is another stage: `NorMuon(params, lr, after="row-moment(beta2=0.9)")`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from torch import Tensor

from inexact_muon.optim.arguments import Keywords, StageOptions
from inexact_muon.optim.presets import Muon
from inexact_muon.optim.stages import RMS, EntryMoment, RowMoment, SecondMoment, Signed


class NorMuon(Muon):
    """NorMuon (arXiv 2510.05491): rows of the oracle's answer divided by the root of their running mean squares.

        v_i <- beta2 v_i + (1 - beta2) mean_j z_ij^2;  y_ij = z_ij / (sqrt(v_i) + eps);  z <- y ||z||_F / ||y||_F

    beta2 is 0.95. This is the form of dion, which keeps the norm, so that lr is that of `Muon`; its defaults are
    `NorMuon(params, 0.01, 0.01, nesterov=False, adjust_lr_fn="spectral")`. The paper's is
    `NorMuon(params, lr, after="row-moment + rms:0.2", adjust_lr_fn="none")`. nanochat's is
    `NorMuon(params, 0.02, 0.0, after="row-moment(beta2=0.9, eps=0.0, side=longer)", decay="cautious")`, with the
    columns of a wide matrix for its rows. Its weight decay is multiplied by sqrt(max(1, out/in)), too; it equilibrates
    and rescales around the oracle, which is not done here.
    """

    stages: ClassVar[StageOptions] = {"after": RowMoment()}


class AdaMuon(Muon):
    """AdaMuon (arXiv 2507.11005): the oracle gets sign(m), and its answer is divided entry by entry.

        v <- beta2 v + (1 - beta2) z^2;  y = z / (sqrt(v) + eps);  z <- 0.2 sqrt(rows columns) y / ||y||_F

    beta2 is 0.95 and there is no Nesterov term. Updates have the RMS of AdamW's, and lr its
    size. Emerging-Optimizers' "adamuon" has no sign and no fixed RMS:
    `AdaMuon(params, lr, before=None, after="entry-moment", adjust_lr_fn=...)`.
    """

    stages: ClassVar[StageOptions] = {"before": Signed(), "after": (EntryMoment(), RMS(0.2))}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = False,
        **options: Unpack[Keywords],
    ) -> None:
        options.setdefault("adjust_lr_fn", "none")
        super().__init__(params, lr, weight_decay, momentum, nesterov, **options)


class Muon2(Muon):
    """Muon^2 (arXiv 2604.09967): the oracle gets m / (sqrt(v) + eps), v <- beta2 v + (1 - beta2) g^2; beta2 is 0.95.

    A better conditioned input needs fewer steps of the oracle: `inexactness()` shows how much is lost.
    """

    stages: ClassVar[StageOptions] = {"before": SecondMoment()}


class Hyperball(Muon):
    """Hyperball (arXiv 2606.16899): weights and updates of fixed Frobenius norm, W <- R unit(W - lr R unit(z)).

    R is the norm that each matrix has at its first step; unit(x) = x / ||x||_F. Only the direction of the oracle's
    answer matters, not its length. lr is the norm of an update over that of its weight. A matrix that starts at zero
    has no sphere, and is updated as by `Muon`. Emerging-Optimizers' MuonHyperball has one R for all parameters.
    """

    stages: ClassVar[StageOptions] = {"fixed_norm": True}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.05,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        **options: Unpack[Keywords],
    ) -> None:
        super().__init__(params, lr, weight_decay, momentum, nesterov, **options)
