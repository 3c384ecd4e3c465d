"""The maths: `reference` defines each op in NumPy, `cpu` runs it fast. Imports nothing of the others."""
