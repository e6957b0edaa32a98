"""The coordinator: a pure state machine (`machine.py`), its components, and the edge that carries out its effects."""
