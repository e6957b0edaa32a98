"""What tables get of a budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.plan.capacity import Claim, divide

CLAIMS = st.lists(
    st.builds(Claim, row_cost=st.sampled_from([1.0, 35.0, 83.0, 147.0]), most=st.none() | st.integers(1, 10**6)),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("claims", "rows"),
    [
        ([Claim(1), Claim(1)], [500, 500]),
        ([Claim(1), Claim(4)], [200, 200]),
        ([Claim(1, share=0.25), Claim(1), Claim(1)], [250, 375, 375]),
        ([Claim(10, share=0.25), Claim(1, share=0.75)], [25, 750]),
        ([Claim(1, most=10), Claim(1), Claim(1)], [10, 495, 495]),
        ([Claim(1, most=10), Claim(2, most=300), Claim(1)], [10, 300, 390]),
        ([Claim(1, most=10), Claim(1, most=20)], [10, 20]),
        ([Claim(1, most=10, share=0.5), Claim(1)], [10, 500]),
        ([Claim(2000), Claim(1)], [0, 0]),
        ([Claim(1, share=0.0001), Claim(1)], [0, 999]),
        ([], []),
    ],
)
def test_of_a_budget_of_1000(claims: list[Claim], rows: list[int]) -> None:
    assert divide(1000, claims) == rows


@given(CLAIMS, st.integers(0, 2**44))
def test_all_is_given_away_and_equally(claims: list[Claim], budget: int) -> None:
    rows = divide(budget, claims)
    assert sum(n * claim.row_cost for n, claim in zip(rows, claims, strict=True)) <= budget
    most = max(rows)
    eager = [claim for n, claim in zip(rows, claims, strict=True) if claim.most is None or n < claim.most]
    for n, claim in zip(rows, claims, strict=True):
        assert n == (most if claim in eager else claim.most)
    left = budget - sum(n * claim.row_cost for n, claim in zip(rows, claims, strict=True))
    assert not eager or left < sum(claim.row_cost for claim in eager)


@given(CLAIMS, st.lists(st.floats(0.001, 0.3), max_size=3), st.integers(10**6, 2**44))
def test_shares_are_taken_first(claims: list[Claim], shares: list[float], budget: int) -> None:
    alone = [Claim(35.0, share=share) for share in shares]
    rows = divide(budget, [*alone, *claims])
    assert rows[: len(alone)] == [int(share * budget // 35.0) for share in shares]
    costs = [n * claim.row_cost for n, claim in zip(rows, [*alone, *claims], strict=True)]
    assert sum(costs) <= budget + 1
