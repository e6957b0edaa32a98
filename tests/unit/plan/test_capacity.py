"""The shares of tables in a budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.plan.capacity import CapacityRequest, divide

CLAIMS = st.lists(
    st.builds(
        CapacityRequest, row_cost=st.sampled_from([1.0, 35.0, 83.0, 147.0]), most=st.none() | st.integers(1, 10**6)
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("requests", "rows"),
    [
        ([CapacityRequest(1), CapacityRequest(1)], [500, 500]),
        ([CapacityRequest(1), CapacityRequest(4)], [200, 200]),
        ([CapacityRequest(1, share=0.25), CapacityRequest(1), CapacityRequest(1)], [250, 375, 375]),
        ([CapacityRequest(10, share=0.25), CapacityRequest(1, share=0.75)], [25, 750]),
        ([CapacityRequest(1, most=10), CapacityRequest(1), CapacityRequest(1)], [10, 495, 495]),
        ([CapacityRequest(1, most=10), CapacityRequest(2, most=300), CapacityRequest(1)], [10, 300, 390]),
        ([CapacityRequest(1, most=10), CapacityRequest(1, most=20)], [10, 20]),
        ([CapacityRequest(1, most=10, share=0.5), CapacityRequest(1)], [10, 500]),
        ([CapacityRequest(2000), CapacityRequest(1)], [0, 0]),
        ([CapacityRequest(1, share=0.0001), CapacityRequest(1)], [0, 999]),
        ([], []),
    ],
)
def test_of_a_budget_of_1000(requests: list[CapacityRequest], rows: list[int]) -> None:
    assert divide(1000, requests) == rows


@given(CLAIMS, st.integers(0, 2**44))
def test_all_is_given_away_and_equally(requests: list[CapacityRequest], budget: int) -> None:
    rows = divide(budget, requests)
    assert sum(n * request.row_cost for n, request in zip(rows, requests, strict=True)) <= budget
    most = max(rows)
    eager = [request for n, request in zip(rows, requests, strict=True) if request.most is None or n < request.most]
    for n, request in zip(rows, requests, strict=True):
        assert n == (most if request in eager else request.most)
    left = budget - sum(n * request.row_cost for n, request in zip(rows, requests, strict=True))
    assert not eager or left < sum(request.row_cost for request in eager)


@given(CLAIMS, st.lists(st.floats(0.001, 0.3), max_size=3), st.integers(10**6, 2**44))
def test_shares_are_taken_first(requests: list[CapacityRequest], shares: list[float], budget: int) -> None:
    alone = [CapacityRequest(35.0, share=share) for share in shares]
    rows = divide(budget, [*alone, *requests])
    assert rows[: len(alone)] == [int(share * budget // 35.0) for share in shares]
    costs = [n * request.row_cost for n, request in zip(rows, [*alone, *requests], strict=True)]
    assert sum(costs) <= budget + 1
