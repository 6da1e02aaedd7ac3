from sdk.testing.backend import *
