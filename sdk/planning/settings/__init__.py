"""Settings and where each of them comes from: arguments, environment, file, defaults."""
