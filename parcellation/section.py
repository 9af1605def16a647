"""What parts of a study or of another settings file have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of a study; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
