"""Made-up tables as studies write them beside a store, for the report's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from report_cases import noise

Tables = dict[str, Any]
"""{file: content}."""
REGRETS = {"keep": 0.3, "measured": 0.02, "descent": 0.2, "paper": 0.1}


def write_tables(folder: Path, tables: Tables) -> Path:
    """Writes them; text as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tables.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def theory(rows: int = 3, ratio: float = 2.0, margin: float = 0.0) -> Tables:
    """Bounds that are `ratio` times what was measured."""
    made = [
        {"statement": f"Theorem {k + 1}, two numbers", "problem": "quadratic", "oracle": "polar-express:5",
         "left": 0.5 + k, "margin": margin, "paper": None, "ours": ratio * (0.5 + k), "holds": True, "sure": True}
        for k in range(rows)
    ]  # fmt: skip
    return {"theory.json": {"rows": made, "optima": [], "ideals": []}}


def cotuning(targets: int = 3, regrets: dict[str, float] | None = None, on_edge: tuple[int, ...] = ()) -> Tables:
    """Regrets by rule, a little different for each target."""
    base = REGRETS | (regrets or {})
    factor = {"keep": 1.0, "measured": 0.7, "descent": 0.9, "paper": 0.95}
    made = []
    for k in range(targets):
        rules = [
            {"rule": rule, "lr": 0.1 * factor[rule], "alpha": 0.3 / factor[rule], "loss": 2.0 + regret, "loss_sd": 0.01,
             "regret": regret + 10 * noise(k) + noise(k, factor[rule])}
            for rule, regret in base.items()
        ]  # fmt: skip
        best = {"lr": 0.06 + 0.01 * k, "alpha": 0.3 + 0.05 * k, "loss": 2.0, "loss_sd": 0.01}
        made.append({"target": f"polar-express(steps={k + 1})", "best": best, "on_edge": k in on_edge, "rules": rules})
    means = [
        {"rule": rule, "regret_mean": regret, "regret_low": 0.9 * regret, "regret_high": 1.1 * regret}
        for rule, regret in base.items()
    ]
    problem = {"problem": "gpt", "title": "A byte GPT", "source": "polar-express(steps=5)", "rules": means,
               "tuned": {"lr": 0.1, "alpha": 0.3}, "keep_regret_mean": base["keep"], "targets": made}  # fmt: skip
    return {"cotuning.json": {"format": "inexact-muon/cotuning/1", "problems": [problem]}}


def every_table() -> Tables:
    """One of each."""
    return theory() | cotuning()
