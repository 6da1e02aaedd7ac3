"""The backend "vertex": a run is a custom job of Vertex AI."""
