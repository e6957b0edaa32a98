"""Values of a column as written in YAML."""

from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator


def _texts_of_dates(value: Any) -> Any:
    """Return dates, which YAML makes of 2024-01-31 without quotes, as their text; other values unchanged."""
    if isinstance(value, list | tuple):
        return [_texts_of_dates(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


Values = Annotated[str | int | tuple[str | int, ...], BeforeValidator(_texts_of_dates)]
