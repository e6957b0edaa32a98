"""The bounds of the verification of an export."""

import pytest

from persia_cli.errors import PersiaError
from persia_cli.export.verification import LabelProof, Proof
from persia_cli.serving.description import Form


def proof(difference: float, pairs: float) -> Proof:
    """The result for 200 samples whose AUC differs by so much."""
    return Proof(200, [LabelProof("click", 0.0, (0.7, 0.7 + difference), pairs)])


def test_a_pair_in_another_order_is_allowed_where_there_are_few() -> None:
    proof(1e-4, pairs=1e4).require("float32")
    with pytest.raises(PersiaError, match="by 4e-04"):
        proof(1e-3, pairs=1e4).require("float32")


@pytest.mark.parametrize(("form", "remedy"), [("float32", "do not serve this export"), ("int8", "with more bits")])
def test_a_greater_difference_of_auc_is_refused_with_a_remedy(form: Form, remedy: str) -> None:
    with pytest.raises(PersiaError, match=remedy):
        proof(1e-3, pairs=1e9).require(form)
