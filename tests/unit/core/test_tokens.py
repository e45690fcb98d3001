"""Token ids from elsewhere are checked one by one."""

from collections.abc import Sequence

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import check_token_ids


@pytest.mark.parametrize("ids", [[], [0], (0, 150_000, 151_935), np.array([0, 151_935])])
def test_the_whole_vocabulary_is_allowed(ids: Sequence[int]) -> None:
    check_token_ids(ids, 151_936, "prompt")


@pytest.mark.parametrize("ids", [[-1], [0, 10], [3, 2**40], np.array([1, -1])])
def test_others_are_refused_by_name_and_index(ids: Sequence[int]) -> None:
    with pytest.raises(InvalidArgument, match=rf"draft\.token_ids: \[{len(ids) - 1}\]") as caught:
        check_token_ids(ids, 10, "draft.token_ids")
    assert caught.value.field == "draft.token_ids"
