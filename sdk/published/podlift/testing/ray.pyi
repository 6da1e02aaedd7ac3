from sdk.testing.ray import *
