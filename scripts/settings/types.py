"""What blocks of settings are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """Base of all blocks: unknown keys are refused, nothing is converted but int to float."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
