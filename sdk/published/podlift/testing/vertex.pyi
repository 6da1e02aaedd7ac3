from sdk.testing.vertex import *
