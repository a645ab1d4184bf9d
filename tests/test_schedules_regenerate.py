"""Generated coefficients agree with published ones; a fixed list is a fixed list."""

import numpy as np
import pytest
from scipy.optimize import linprog

from inexact_muon import schedules
from inexact_muon.schedules.design import CUSHION, minimax, taylor

POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
"""The list of the Polar Express paper, before its safety factor."""

SAFETY_2_PERCENT = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Five steps with cushion 0.02 and the safety factor inside the recursion, as dion and nanochat ship them."""

CANS = (
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
)


@pytest.mark.parametrize("steps", range(1, 9))
def test_polar_express_is_the_published_list(steps: int) -> None:
    made = schedules.polar_express(steps, lower=1e-3, safety=1.0, cushion=CUSHION).coefficients
    for t, (ours, published) in enumerate(zip(made, POLAR_EXPRESS, strict=False), start=1):
        np.testing.assert_allclose(ours, published, rtol=1e-9 if t <= 7 else 1e-6)


def test_safety_factor_inside_the_recursion() -> None:
    made = schedules.polar_express(5, safety=1.02, cushion=0.02).coefficients
    np.testing.assert_allclose(made, SAFETY_2_PERCENT, rtol=1e-12)


def test_cans_to_four_digits() -> None:
    np.testing.assert_allclose(schedules.cans(5).coefficients, CANS, atol=5.1e-5)


def test_the_cushion_is_where_the_quintic_maps_to_a_ratio_of_ten() -> None:
    assert minimax(5, CUSHION)[1] == pytest.approx(9 / 11, abs=1e-12)


@pytest.mark.parametrize("degree", [3, 5, 7, 9, 11, 13])
@pytest.mark.parametrize("lower", [1e-6, 1e-3, 0.1, 0.9, 0.999])
def test_minimax_equioscillates(degree: int, lower: float) -> None:
    step, error = minimax(degree, lower)
    schedule = schedules.Schedule(lower, "test", (step,))
    grid = np.geomspace(lower, 1.0, 200_001)
    residual = 1.0 - schedule.scalar(grid)
    assert np.abs(residual).max() == pytest.approx(error, abs=1e-9)
    peaks = residual[np.abs(residual) >= error - 1e-7 - 1e-6 * error]
    if error > 1e-6:
        assert (np.diff(np.sign(peaks)) != 0).sum() == (degree + 1) // 2  # q+2 points, q+1 changes of sign


def test_cubic_closed_form() -> None:
    """2.4 of the digest: a = sqrt(3/(u^2+lu+l^2)), b = 4/(2 + lu(l+u) a^3), p = b(1.5 a x - 0.5 a^3 x^3)."""
    for low, high in ((1e-3, 1.0), (0.1, 1.0), (0.4, 1.6)):
        a = np.sqrt(3 / (high**2 + low * high + low**2))
        b = 4 / (2 + low * high * (low + high) * a**3)
        step, error = minimax(3, low, high)
        np.testing.assert_allclose(step, (1.5 * a * b, -0.5 * a**3 * b), rtol=1e-10)
        assert error == pytest.approx(b - 1, rel=1e-9)


def test_taylor_coefficients() -> None:
    assert taylor(3) == (1.5, -0.5)
    np.testing.assert_allclose(taylor(9), np.array([315, -420, 378, -180, 35]) / 128, rtol=1e-14)


def test_minimax_tends_to_taylor() -> None:
    for degree in (3, 5, 9):
        step, _ = minimax(degree, 1 - 1e-6, 1 + 1e-6)
        np.testing.assert_allclose(step, taylor(degree), rtol=1e-4)


@pytest.mark.parametrize(
    ("lower", "poles", "error"),
    [(1e-1, 1, 0.072), (1e-2, 2, 0.065), (1e-3, 3, 0.062), (1e-4, 4, 0.061), (1e-3, 6, 0.0018), (1e-4, 6, 0.0094)],
)
def test_zolotarev_error_is_the_tabulated_one(lower: float, poles: int, error: float) -> None:
    assert schedules.zolotarev(poles, lower).error_bound(lower) == pytest.approx(error, rel=0.03)


def test_zolotarev_product_and_partial_fractions_agree() -> None:
    """f = scale s prod (s^2 + c_2j)/(s^2 + c_(2j-1)): rebuilt from the zeros of 1 + sum a_j/(y + c_(2j-1))."""
    made = schedules.zolotarev(3, 1e-3)
    denominator = np.poly([-c for c in made.poles])
    numerator = denominator.copy()
    for pole, residue in zip(made.poles, made.residues, strict=True):
        numerator[1:] += residue * np.poly([-c for c in made.poles if c != pole])
    zeros = np.roots(numerator)
    assert (zeros.real < 0).all()
    s = np.geomspace(1e-4, 1, 50)
    product = made.scale * s * np.prod([s**2 - z for z in zeros], axis=0).real
    product /= np.prod([s**2 + c for c in made.poles], axis=0)
    np.testing.assert_allclose(product, made.scalar(s), rtol=1e-9)


@pytest.mark.parametrize("power", [-0.5, -0.2, -0.1, 0.1, 0.3])
@pytest.mark.parametrize(("poles", "lower"), [(1, 1e-2), (2, 3e-3), (3, 1e-3), (3, 1e-5), (8, 1e-4)])
def test_a_tilted_function_alternates_as_only_the_best_one_does(poles: int, lower: float, power: float) -> None:
    """2 poles + 2 extrema of f/s^p - 1 of one size and alternating signs: no function of this type is closer."""
    made = schedules.zolotarev(poles, lower, power=power)
    s = np.geomspace(lower, 1.0, 400_001)
    error = made.scalar(s) / s**power - 1.0
    size = np.abs(error).max()
    assert 0.0 < size < 1.0
    signs = np.sign(error[np.abs(error) > (1.0 - 1e-3) * size])
    assert 1 + np.count_nonzero(np.diff(signs)) == 2 * poles + 2
    low, high = made.image(lower, 1.0)
    assert (low, high) == pytest.approx((made.scalar(s).min(), made.scalar(s).max()), rel=1e-6)


def test_without_a_tilt_it_is_zolotarevs_function() -> None:
    plain, tilted = schedules.zolotarev(3, 1e-3), schedules.zolotarev(3, 1e-3, power=-1e-9)
    for name in ("scale", "poles", "residues"):
        np.testing.assert_allclose(getattr(tilted, name), getattr(plain, name), rtol=1e-6)


@pytest.mark.parametrize(("given", "said"), [({"power": 0.6}, "power"), ({"power": -0.1, "polish": 9}, "leave one")])
def test_a_tilt_has_limits(given: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schedules.zolotarev(1, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "lower", "power"), [(5, 3e-3, -0.2), (6, 1e-3, -0.1), (5, 1e-2, 0.2), (1, 0.1, -0.1)]
)
def test_weights_of_iterates_are_nearly_those_of_a_linear_programme(steps: int, lower: float, power: float) -> None:
    """Slow twin: min E such that |sum_k w_k x_k(s)/s^p - 1| <= E at every point."""
    made = schedules.polar_express(steps, lower, power=power)
    s = np.geomspace(lower, 1.0, 1500)
    basis = np.stack(made.iterates(s), axis=1) / s[:, None] ** power
    ones = np.ones((len(s), 1))
    table, limit = np.block([[basis, -ones], [-basis, -ones]]), np.concatenate((ones, -ones))
    costs = [*[0.0] * (steps + 1), 1.0]
    found = linprog(costs, A_ub=table, b_ub=limit, bounds=[(None, None)] * (steps + 1) + [(0, None)])
    assert np.abs(made.scalar(s) / s**power - 1.0).max() <= 1.15 * found.fun
    fine = made.scalar(np.geomspace(lower, 1.0, 200_001))
    assert made.image(lower, 1.0) == pytest.approx((fine.min(), fine.max()), rel=1e-3)
