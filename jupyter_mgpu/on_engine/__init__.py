"""What runs in an engine's process. Imports neither Jupyter nor NVML; torch only when needed."""
