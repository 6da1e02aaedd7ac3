from sdk.testing.gcs import *
