"""The backend "kubernetes": a run is a Job of a cluster, or a JobSet if its tasks have unequal roles."""
