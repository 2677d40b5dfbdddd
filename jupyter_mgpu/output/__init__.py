"""What comes back from the engines, shown in the notebook: lanes, figures, errors, diaries."""
