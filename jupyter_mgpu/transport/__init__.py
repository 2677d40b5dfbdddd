"""The only door to ipyparallel: starts its controller and engines, and talks to them directly."""
