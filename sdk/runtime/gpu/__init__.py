"""GPUs: a stand-in made of logical CPU devices for machines without them. docs/explanation/decisions/gpu-stand-in.md."""
