"""The cost model of `persia plan`: measurements of roles, and what follows from them by arithmetic."""
