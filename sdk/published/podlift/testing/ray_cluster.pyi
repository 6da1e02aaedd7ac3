from sdk.testing.ray_cluster import *
