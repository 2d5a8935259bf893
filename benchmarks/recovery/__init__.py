"""Do explanations recover the functions behind the data? A grid of known functions, sizes and correlations."""
