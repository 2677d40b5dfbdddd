"""The extension of the Jupyter server: what the sidebar sees, and what it can do to pools."""
