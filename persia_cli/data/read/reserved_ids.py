"""Ids with a reserved meaning: numbers unlikely to occur in data, unlike -1, which often stands for unknown."""

RARE_ID = 0x52_61_72_65_5F_49_64_21
"""The id that replaces rare ids."""
NULL_ID = 0x4E_75_6C_6C_5F_49_64_21
"""The id of a null, of whatever type; an integer of the data that equals it is refused."""
PADDING_ID = 0x50_61_64_64_5F_49_64_21
"""The id of a padding that is a text where all other ids are integers, until it is left out."""
