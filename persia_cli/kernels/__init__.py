"""Pure numba functions on plain arrays: no objects, no allocation in loops, serial and nogil."""
