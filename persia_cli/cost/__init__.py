"""The cost model of `persia plan`: measured or estimated costs of roles, and what follows from them by arithmetic."""
