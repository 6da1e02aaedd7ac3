from sdk.testing.fake_backend import *
